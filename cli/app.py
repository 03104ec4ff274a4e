"""The `underpaint` command line. It only parses, calls and prints."""

import sys
from collections.abc import Sequence
from importlib import import_module
from typing import Annotated, Any, Final

import typer
from typer.core import TyperGroup
from typer.main import get_group

from underpaint.algos.plugins import (
    VARIABLE,
    PluginError,
    clean_output,
    guard_exit,
    load_plugins,
    named_by_environment,
    named_in_use,
)
from underpaint.artifacts.manifest import ManifestError
from underpaint.cli.errors import BAD_INPUT, bad_input, machine_errors, stopped_on_interrupt
from underpaint.cli.outputs import Command, Commands, TorchCommand, allow_overwriting
from underpaint.cli.terminal import be_quiet, forget_odd_columns

_WITH_VALUE: Final = ("--plugin",)
_FLAGS: Final = ("--quiet", "-q", "--overwrite", "--version")
HELP_NAMES: Final = {"help_option_names": ["-h", "--help"]}
"""Context settings of every command: `-h` means `--help`."""


COMMANDS: Final = {
    "generate": "generate:generate",
    "compare": "compare:compare",
    "report": "report:report",
    "sweep": "sweep:sweep",
    "tune": "tune:tune",
    "protocol": "protocol:protocol",
    "evaluate": "evaluation.evaluate:evaluate",
    "methods": "methods:methods",
    "prompts": "prompts:prompts",
    "costs": "costs:costs",
    "exact": "exact:exact",
    "certify": "certify:certify",
    "premises": "evaluation.premises:premises",
    "serve": "serve:serve",
    "trace": "simulate.trace:trace",
    "env": "env:env",
    "simulate": "simulate.commands:app",
    "plot": "plot:plot",
    "advise": "advise:advise",
    "results": "results:app",
    "metrics": "evaluation.metrics:app",
    "train": "train.commands:app",
    "export": "export:export",
    "check": "export:check",
    "engine": "engine:engine",
}
"""The location of each command as "module:name" in `underpaint.cli`, imported on first use."""
_NEED_TORCH: Final = ("export", "check", "engine")


def load_command(name: str) -> Any:
    """Import a command or a command group, and return it as a click command."""
    module, _, attribute = COMMANDS[name].partition(":")
    command = getattr(import_module(f"underpaint.cli.{module}"), attribute)
    holder = Commands()
    if isinstance(command, typer.Typer):
        holder.add_typer(command, name=name)
    else:
        holder.command(name, cls=TorchCommand if name in _NEED_TORCH else Command)(command)
    return get_group(holder).commands[name]


class RootGroup(TyperGroup):
    """The root group. It accepts its own options anywhere before `--`, and imports commands on demand."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        self.commands: dict[str, Any] = dict.fromkeys(COMMANDS)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """Return the command with this name, imported on first use; None for an unknown name."""
        if cmd_name in self.commands and self.commands[cmd_name] is None:
            self.commands[cmd_name] = load_command(cmd_name)
        return self.commands.get(cmd_name)

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        return super().parse_args(ctx, own_first(args))

    def invoke(self, ctx: Any) -> Any:
        """Run the command. On Ctrl-C that it does not handle, print one line and exit with the shells' code."""
        with stopped_on_interrupt():
            return super().invoke(ctx)

    def make_context(self, *args: Any, **more: Any) -> Any:
        """Parse the command line. Ctrl-C ends it in the same way."""
        with stopped_on_interrupt():
            return super().make_context(*args, **more)


def own_first(args: Sequence[str]) -> list[str]:
    """Return the arguments with the options of `underpaint` itself moved to the front."""
    root_options: list[str] = []
    others: list[str] = []
    queue = list(args)
    while queue:
        one = queue.pop(0)
        if one == "--":
            others += [one, *queue]
            break
        if one in _FLAGS or one.partition("=")[0] in _WITH_VALUE:
            root_options.append(one)
            if one in _WITH_VALUE and queue:
                root_options.append(queue.pop(0))
        else:
            others.append(one)
    return root_options + others


_NAME = "underpaint"

app = Commands(
    help="Speculative decoding of autoregressive image models: draw, compare, simulate and certify.",
    cls=RootGroup,
    context_settings=HELP_NAMES,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)


def _show_version(value: bool) -> None:
    if value:
        import underpaint

        typer.echo(f"underpaint {underpaint.__version__}")
        raise typer.Exit()


@app.callback()
def plugins(
    ctx: typer.Context,
    plugin: Annotated[
        list[str] | None,
        typer.Option(help=f"A module or .py file that registers rules or policies; repeat for more. Also {VARIABLE}."),
    ] = None,
    quiet: Annotated[
        bool, typer.Option("--quiet", "-q", help="Print results and errors only: no progress, no notes.")
    ] = False,
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Let outputs replace files that this program did not write.")
    ] = False,
    version: Annotated[
        bool, typer.Option("--version", help="Print the version.", callback=_show_version, is_eager=True)
    ] = False,
) -> None:
    """Load rules and policies from outside before any command. These options may stand anywhere on the line."""
    be_quiet(quiet)
    allow_overwriting(overwrite)
    ctx.call_on_close(lambda: allow_overwriting(False))  # only this command line may overwrite
    with bad_input():
        load_plugins((*named_by_environment(), *(plugin or ())))


def main() -> None:
    """Run the command line."""
    forget_odd_columns()
    try:
        with stopped_on_interrupt(), machine_errors(), clean_output(), named_in_use():
            app(prog_name=_NAME)
    # PluginError: an installed plug-in, loaded on first use of a registry. ManifestError: the package's own tables.
    except (PluginError, ManifestError) as error:
        typer.echo(f"error: {error}", err=True)
        sys.exit(BAD_INPUT)
    finally:
        guard_exit()


if __name__ == "__main__":
    main()

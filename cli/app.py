"""`underpaint`: the command line. Thin: it parses, calls and prints."""

import sys
from typing import Annotated

import typer

from underpaint.algos.plugin_guard import clean_output, guard_exit, named_in_use
from underpaint.algos.plugins import VARIABLE, PluginError, load_plugins, named_by_environment
from underpaint.artifacts.manifest import ManifestError
from underpaint.cli.errors import BAD_INPUT, bad_input, machine_errors, stopped_on_interrupt
from underpaint.cli.outputs import Commands, allow_overwriting
from underpaint.cli.root import HELP_NAMES, RootGroup, completion_script, enable_completion
from underpaint.cli.terminal import be_quiet, forget_odd_columns

_NAME = "underpaint"

app = Commands(
    help="Draft, verify, paint: speculative decoding of visual autoregressive models, method beside method.",
    cls=RootGroup,
    context_settings=HELP_NAMES,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    add_completion=False,
)


def _show_version(asked: bool) -> None:
    if asked:
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
    ctx.call_on_close(lambda: allow_overwriting(False))  # the permission is this line's, not of what runs after it
    with bad_input():
        load_plugins((*named_by_environment(), *(plugin or ())))


@app.command()
def completion(
    shell: Annotated[str, typer.Argument(help="bash, zsh, fish or powershell.")],
) -> None:
    """Print what a shell has to read to complete commands and options; no file is changed.

    In bash, for one session: eval "$(underpaint completion bash)". To keep it, put that line where your shell starts.
    """
    with bad_input():
        script = completion_script(shell, _NAME)
    typer.echo(script)


def main() -> None:
    """Run the command line."""
    forget_odd_columns()
    try:
        with stopped_on_interrupt(), machine_errors(), clean_output(), named_in_use():
            enable_completion()
            app(prog_name=_NAME)
    # A plug-in of an installed package, which is loaded when a registry is first asked; the package's own tables.
    except (PluginError, ManifestError) as error:
        typer.echo(f"error: {error}", err=True)
        sys.exit(BAD_INPUT)
    finally:
        guard_exit()


if __name__ == "__main__":
    main()

"""`underpaint`: the command line. Thin: it parses, calls and prints."""

import sys
from typing import Annotated

import typer

from underpaint.algos.plugin_guard import clean_output, named_in_use
from underpaint.algos.plugins import VARIABLE, PluginError, load_plugins, named_by_environment
from underpaint.artifacts.manifest import ManifestError
from underpaint.cli.certify import certify
from underpaint.cli.compare import compare
from underpaint.cli.costs import costs
from underpaint.cli.engine import engine
from underpaint.cli.env import env
from underpaint.cli.errors import BAD_INPUT, bad_input, machine_errors, stopped_on_interrupt
from underpaint.cli.evaluation.evaluate import evaluate
from underpaint.cli.evaluation.metrics import app as metrics
from underpaint.cli.evaluation.premises import premises
from underpaint.cli.exact import exact
from underpaint.cli.export import caption, check, export
from underpaint.cli.generate import generate
from underpaint.cli.methods import methods
from underpaint.cli.outputs import Commands, TorchCommand, allow_overwriting
from underpaint.cli.prompts import prompts
from underpaint.cli.report import report
from underpaint.cli.results import app as results
from underpaint.cli.root import HELP_NAMES, RootGroup, completion_script, enable_completion
from underpaint.cli.simulate.commands import app as simulate
from underpaint.cli.simulate.trace import trace
from underpaint.cli.sweep import sweep
from underpaint.cli.terminal import be_quiet, forget_odd_columns
from underpaint.cli.train.commands import app as train

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
    with bad_input():
        load_plugins((*named_by_environment(), *(plugin or ())))


app.command()(generate)
app.command()(compare)
app.command()(report)
app.command()(sweep)
app.command()(evaluate)
app.command()(methods)
app.command()(prompts)
app.command()(costs)
app.command()(exact)
app.command()(certify)
app.command()(premises)
app.command()(trace)
app.command()(env)
app.add_typer(simulate, name="simulate")
app.add_typer(results, name="results")
app.add_typer(metrics, name="metrics")

app.add_typer(train, name="train")
app.command(cls=TorchCommand)(export)
app.command(cls=TorchCommand)(check)
app.command(cls=TorchCommand)(caption)
app.command(cls=TorchCommand)(engine)


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


if __name__ == "__main__":
    main()

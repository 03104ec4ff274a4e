"""`underpaint`: the command line. Thin: it parses, calls and prints."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated

import typer

from underpaint.algos.plugins import VARIABLE, PluginError, load_plugins, named_by_environment
from underpaint.artifacts.manifest import ManifestError
from underpaint.cli.certify import certify
from underpaint.cli.compare import compare
from underpaint.cli.costs import costs
from underpaint.cli.errors import BAD_INPUT, bad_input, machine_errors
from underpaint.cli.evaluation.evaluate import evaluate
from underpaint.cli.evaluation.metrics import app as metrics
from underpaint.cli.evaluation.premises import premises
from underpaint.cli.exact import exact
from underpaint.cli.generate import generate
from underpaint.cli.methods import methods
from underpaint.cli.prompts import prompts
from underpaint.cli.report import report
from underpaint.cli.results import app as results
from underpaint.cli.root import HELP_NAMES, RootGroup, completion_script, enable_completion
from underpaint.cli.simulate.commands import app as simulate
from underpaint.cli.simulate.trace import trace
from underpaint.cli.sweep import sweep
from underpaint.cli.terminal import be_quiet

_OURS = ("underpaint",)
_NAME = "underpaint"
_INSTALL = "pip install -e '.[cpu,train]'"

app = typer.Typer(
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
    version: Annotated[
        bool, typer.Option("--version", help="Print the version.", callback=_show_version, is_eager=True)
    ] = False,
) -> None:
    """Load rules and policies from outside before any command. These options may stand anywhere on the line."""
    be_quiet(quiet)
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
app.add_typer(simulate, name="simulate")
app.add_typer(results, name="results")
app.add_typer(metrics, name="metrics")

_HANDED_ON = {"allow_extra_args": True, "ignore_unknown_options": True}


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


@app.command(context_settings=_HANDED_ON, add_help_option=False)
def train(context: typer.Context) -> None:
    """Train the shipped models again (needs PyTorch), a recipe each: tokenizer, targets, drafters, samplers, judge."""
    with _needs_torch("training", context):
        from underpaint.cli.train.commands import app as recipes

        recipes(context.args, prog_name="underpaint train")


@app.command(context_settings=_HANDED_ON, add_help_option=False)
def export(context: typer.Context) -> None:
    """Export checkpoints to ONNX (needs PyTorch), compared with torch: the recipes', or published ones with --kind."""
    with _needs_torch("export", context):
        from underpaint.cli.export import app as published

        if any(argument.partition("=")[0] == "--kind" for argument in context.args):
            published(context.args, prog_name="underpaint export")
        if {"--help", "-h"} & set(context.args):
            typer.echo("Two forms. With --kind, a published checkpoint:")
            published(["--help"], prog_name="underpaint export", standalone_mode=False)
            typer.echo("Without --kind, the checkpoints of this project's own recipes:\n")
        from underpaint.export.trained_models import main as run

        raise typer.Exit(run(context.args, "underpaint export"))


@app.command(context_settings=_HANDED_ON, add_help_option=False)
def check(context: typer.Context) -> None:
    """Compare exported models with torch (needs PyTorch), or by --invariance large passes with passes of one token."""
    with _needs_torch("check", context):
        from underpaint.cli.export import check_app

        check_app(context.args, prog_name="underpaint check")


@app.command(context_settings=_HANDED_ON, add_help_option=False)
def caption(context: typer.Context) -> None:
    """Write a caption's features by FLAN-T5 (needs PyTorch and transformers)."""
    with _needs_torch("caption", context):
        from underpaint.cli.export import caption_app

        caption_app(context.args, prog_name="underpaint caption")


@app.command(context_settings=_HANDED_ON, add_help_option=False)
def engine(context: typer.Context) -> None:
    """Build TensorRT engines of exported models (needs PyTorch and a TensorRT package)."""
    with _needs_torch("engine", context):
        from underpaint.cli.engine import app as builder

        builder(context.args, prog_name="underpaint engine")


@contextmanager
def _needs_torch(what: str, context: typer.Context) -> Iterator[None]:
    """Tell what to install where a package of the training extra is missing; commands import some as they run."""
    try:
        yield
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] in _OURS:
            raise
        if {"-h", "--help"} & set(context.args):
            typer.echo(f"{context.command.help}\n\nIts options are listed where {error.name} is installed: {_INSTALL}")
            raise typer.Exit from None
        typer.echo(f"error: {what} needs {error.name}; install it with: {_INSTALL}", err=True)
        raise typer.Exit(BAD_INPUT) from error


def main() -> None:
    """Run the command line."""
    enable_completion()
    try:
        with machine_errors():
            app(prog_name=_NAME)
    # A plug-in of an installed package, which is loaded when a registry is first asked; the package's own tables.
    except (PluginError, ManifestError) as error:
        typer.echo(f"error: {error}", err=True)
        sys.exit(BAD_INPUT)


if __name__ == "__main__":
    main()

"""`underpaint`: the command line. Thin: it parses, calls and prints."""

import typer

from cli.compare import compare
from cli.errors import BAD_INPUT
from cli.generate import generate
from cli.methods import methods

app = typer.Typer(
    help="Draft, verify, paint: speculative decoding of visual autoregressive models, method beside method.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    add_completion=False,
)
app.command()(generate)
app.command()(compare)
app.command()(methods)

_HANDED_ON = {"allow_extra_args": True, "ignore_unknown_options": True}


@app.command(context_settings=_HANDED_ON, add_help_option=False)
def train(context: typer.Context) -> None:
    """Train the shipped models again (needs PyTorch): tokenizer, target, drafter, judge."""
    try:
        from cli.train import app as recipes
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] in ("cli", "models"):
            raise
        typer.echo(f"error: training needs {error.name}; install it with: pip install -e '.[train]'", err=True)
        raise typer.Exit(BAD_INPUT) from error
    recipes(context.args, prog_name="underpaint train")


def main() -> None:
    """Run the command line."""
    app()


if __name__ == "__main__":
    main()

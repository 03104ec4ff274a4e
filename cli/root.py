"""The options of `underpaint` itself, which may stand anywhere on the line, before a command or behind it."""

from collections.abc import Sequence
from importlib import import_module
from typing import Any, Final

from typer.core import TyperGroup

from underpaint.cli.errors import stopped_on_interrupt

_WITH_VALUE: Final = ("--plugin",)
_FLAGS: Final = ("--quiet", "-q", "--overwrite", "--version")
HELP_NAMES: Final = {"help_option_names": ["-h", "--help"]}
"""Of every command."""


class RootGroup(TyperGroup):
    """Reads its own options wherever they stand; all behind `--` is the command's."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        return super().parse_args(ctx, own_first(args))

    def invoke(self, ctx: Any) -> Any:
        """Ctrl-C in a command that keeps nothing of what it had not finished: one line, and the code of shells."""
        with stopped_on_interrupt():
            return super().invoke(ctx)

    def make_context(self, *given: Any, **more: Any) -> Any:
        """Ctrl-C while the line is read ends in the same way."""
        with stopped_on_interrupt():
            return super().make_context(*given, **more)


def own_first(args: Sequence[str]) -> list[str]:
    """The arguments with the options of `underpaint` itself in front."""
    own: list[str] = []
    left: list[str] = []
    given = list(args)
    while given:
        one = given.pop(0)
        if one == "--":
            left += [one, *given]
            break
        if one in _FLAGS or one.partition("=")[0] in _WITH_VALUE:
            own.append(one)
            if one in _WITH_VALUE and given:
                own.append(given.pop(0))
        else:
            left.append(one)
    return own + left


def completion_script(shell: str, name: str) -> str:
    """What a shell has to read to complete the commands and options of `name`; ValueError for an unknown shell."""
    known = ("bash", "zsh", "fish", "powershell")
    if shell not in known:
        raise ValueError(f"completion: expected one of {', '.join(known)}, got {shell!r}")
    variable = f"_{name.upper()}_COMPLETE"
    script: str = _typer_completion().get_completion_script(prog_name=name, complete_var=variable, shell=shell)
    return script


def enable_completion() -> None:
    """Answer a shell that asks what could stand next."""
    _typer_completion().completion_init()


def _typer_completion() -> Any:
    """Typer's part for it, whose names it does not list as exported."""
    return import_module("typer.completion")

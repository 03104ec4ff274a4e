"""The options of `underpaint` itself, which may stand anywhere on the line, before a command or behind it."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

from typer.core import TyperGroup

if TYPE_CHECKING:
    import click

_WITH_VALUE: Final = ("--plugin",)
_FLAGS: Final = ("--quiet", "-q", "--version")
HELP_NAMES: Final = {"help_option_names": ["-h", "--help"]}
"""Of every command."""


class RootGroup(TyperGroup):
    """Reads its own options wherever they stand; all behind `--` is the command's."""

    def parse_args(self, ctx: "click.Context", args: list[str]) -> list[str]:
        return super().parse_args(ctx, own_first(args))


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
    from typer import completion

    completion.completion_init()
    known: Any = ("bash", "zsh", "fish", "powershell")
    if shell not in known:
        raise ValueError(f"completion: expected one of {', '.join(known)}, got {shell!r}")
    return completion.get_completion_script(prog_name=name, complete_var=f"_{name.upper()}_COMPLETE", shell=shell)

"""The options of `underpaint` itself, which may stand anywhere on the line, before a command or behind it."""

from collections.abc import Mapping, Sequence
from importlib import import_module
from typing import Any, Final

import typer
from typer.core import TyperGroup
from typer.main import get_group

from underpaint.cli.errors import stopped_on_interrupt
from underpaint.cli.outputs import Command, Commands, TorchCommand

_WITH_VALUE: Final = ("--plugin",)
_FLAGS: Final = ("--quiet", "-q", "--overwrite", "--version")
HELP_NAMES: Final = {"help_option_names": ["-h", "--help"]}
"""Of every command."""


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
    "trace": "simulate.trace:trace",
    "env": "env:env",
    "simulate": "simulate.commands:app",
    "results": "results:app",
    "metrics": "evaluation.metrics:app",
    "train": "train.commands:app",
    "export": "export:export",
    "check": "export:check",
    "caption": "export:caption",
    "engine": "engine:engine",
}
"""Where each command is: "module:name" in `underpaint.cli`, imported when the command is asked for."""
_NEED_TORCH: Final = ("export", "check", "caption", "engine")


class LazyCommands(dict[str, Any]):
    """Commands by name, each imported when it is first asked for; its names alone import nothing."""

    def __init__(self, commands: Mapping[str, Any]) -> None:
        super().__init__({**dict.fromkeys(COMMANDS), **commands})

    def __getitem__(self, name: str) -> Any:
        if super().__getitem__(name) is None:
            self[name] = load_command(name)
        return super().__getitem__(name)

    def get(self, name: str, default: Any = None) -> Any:
        if name not in self:
            return default
        return self[name]

    def values(self) -> Any:
        return {name: self[name] for name in self}.values()

    def items(self) -> Any:
        return {name: self[name] for name in self}.items()


def load_command(name: str) -> Any:
    """Import a command, or a group of them, and return it as click takes it."""
    module, _, attribute = COMMANDS[name].partition(":")
    found = getattr(import_module(f"underpaint.cli.{module}"), attribute)
    holder = Commands()
    if isinstance(found, typer.Typer):
        holder.add_typer(found, name=name)
    else:
        holder.command(name, cls=TorchCommand if name in _NEED_TORCH else Command)(found)
    return get_group(holder).commands[name]


class RootGroup(TyperGroup):
    """Reads its own options wherever they stand; all behind `--` is the command's. Commands are imported on demand."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        self.commands = LazyCommands(self.commands)

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

"""Outputs of commands: nothing of the user's is overwritten unasked.

Every option that names an output is declared by `parser=` one of the parsers here; `Commands` checks them all before a
command starts.
"""

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, TypeVar

import typer
from typer.core import TyperCommand

from underpaint.algos.numbers import real_number, whole_number
from underpaint.artifacts.origin import LOG, RESULTS, kind_of
from underpaint.cli.errors import bad_input, needed

MODELS_INDEX: Final = "model_index.json"
"""The file that makes a folder one of models."""
_READ: Final = frozenset({"compare", "sweep", "evaluate", "certify", "certify-case", LOG})
"""What commands read of a folder that they are given."""
_RESULTS_OF: Final[Mapping[str, tuple[str, ...]]] = {
    "compare": ("compare",),
    "sweep": ("sweep",),
    "premises": ("premises",),
    "check": ("invariance",),
    "certify": ("certify", "certify-case"),
}
"""The kinds of results that a command writes by an option, and so may replace."""
_PLAIN: Final = (".png", ".webp")


Registered = TypeVar("Registered", bound=Callable[..., Any])


@dataclass(slots=True)
class _Permission:
    overwrite: bool = False


_permission: Final = _Permission()


def allow_overwriting(allowed: bool) -> None:
    """Whether files that this program did not write may be replaced: `--overwrite`."""
    _permission.overwrite = allowed


@dataclass(frozen=True, slots=True)
class Output:
    """Reads the value of an option that names an output, before Python forgets how it was written.

    file: whether it names a file. folder: whether it names a folder. Both where it depends on the rest of the line.
    models: whether a folder of models may be filled. kind: the format of the file, where its name does not say it.
    """

    file: bool = True
    folder: bool = False
    models: bool = False
    kind: str | None = None

    @property
    def __name__(self) -> str:
        """What usage shows for it."""
        return "path"

    def __call__(self, text: str | Path) -> Path:
        """The path; BadParameter where the name is empty, `/`, or has a trailing slash where a file is expected."""
        name = os.fspath(text)
        what = "a file or folder" if self.file and self.folder else "a file" if self.file else "a folder"
        if not name.strip():
            raise typer.BadParameter(f"expected the name of {what}, got an empty name; name one, or leave it out")
        path = Path(name)
        if os.path.realpath(path) == os.path.realpath(os.sep):
            raise typer.BadParameter(f"expected the name of {what}, got {name}, the root of all files; name one in it")
        only_file = self.file and (not self.folder or path.suffix.lower() in _PLAIN)
        if only_file and name.endswith((os.sep, f"{os.sep}.")):
            raise typer.BadParameter(f"expected the name of a file, got {name}, a folder; name a file in it")
        if only_file and name in (".", ".."):
            raise typer.BadParameter(f"expected the name of a file, got {name}, a folder; name a file in it")
        return path


output_file: Final = Output()
json_output: Final = Output(kind="json")
page_output: Final = Output(kind="html")
output_folder: Final = Output(file=False, folder=True)
models_folder: Final = Output(file=False, folder=True, models=True)
file_or_folder: Final = Output(folder=True)


def output_of(option: Any) -> Output | None:
    """How an option's output is read; None where the option names none."""
    info = getattr(getattr(option, "type_descriptor", None), "parameter_info", None)
    parser = getattr(info, "parser", None) or getattr(getattr(option, "type", None), "func", None)
    return parser if isinstance(parser, Output) else None


_RENAMED: Final[Mapping[str, str]] = {"--engines": "--models", "--models": "--model", "--engine": "--on"}
"""Options of earlier versions with their names of today, for commands that have the latter."""


class Command(TyperCommand):
    """A command whose outputs are checked before it starts."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Refuse old names of options, and what Python alone reads as a number: 1_000, other scripts, 1e-400."""
        given, _, _ = self._parsed(ctx, args)
        for option in self.params:
            read = _reader_of(option)
            value = given.get(option.name)
            for text in (value if isinstance(value, list | tuple) else [value]) if read is not None else ():
                if isinstance(text, str):
                    _check_number(option, text, ctx)
        return super().parse_args(ctx, args)

    def _parsed(self, ctx: Any, args: list[str]) -> Any:
        """The arguments as the parser gives them; BadParameter for the old name of an option."""
        try:
            return self.make_parser(ctx).parse_args(args=list(args))
        except Exception as error:  # Typer does not export what it raises for an unknown option
            old = str(getattr(error, "option_name", ""))
            new = _RENAMED.get(old)
            if new is None or not any(new in option.opts for option in self.params):
                raise
            raise typer.BadParameter(f"{old} is called {new} now; pass {new} with the same value", ctx) from error

    def invoke(self, ctx: Any) -> Any:
        """Check, then run it."""
        with bad_input():
            check_outputs(ctx)
        return super().invoke(ctx)


def _reader_of(option: Any) -> Callable[[str], float] | None:
    """What reads the numbers of an option strictly; None where it takes none."""
    info = getattr(option, "type_descriptor", None)
    kind = getattr(info, "annotation", None) or getattr(getattr(option, "type", None), "name", "")
    words = str(getattr(kind, "__name__", kind))
    return whole_number if words.startswith("int") else real_number if words.startswith("float") else None


def _check_number(option: Any, text: str, ctx: Any) -> None:
    """BadParameter for what is a number to Python alone; what the option's own check refuses is left to it."""
    try:
        value = float(text)
    except ValueError:
        return
    plain = text.isascii() and "_" not in text
    if plain and (value != 0.0 or not set(text.lower().partition("e")[0]) & set("123456789")):
        return
    read = _reader_of(option)
    try:
        if read is not None:
            read(text)
    except ValueError as error:
        raise typer.BadParameter(str(error), ctx, option) from error


class TorchCommand(Command):
    """A command that imports packages of the training extra as it runs; its help and its completion need none."""

    def invoke(self, ctx: Any) -> Any:
        """Run it; tell what to install where a package is missing."""
        with needed(f"`{ctx.command_path}`", "cpu", "train"):
            return super().invoke(ctx)


class Commands(typer.Typer):
    """A group of such commands."""

    def command(
        self, name: str | None = None, *, cls: type[TyperCommand] | None = None, **settings: Any
    ) -> Callable[[Registered], Registered]:
        """Register one, as `typer.Typer.command` does."""
        return super().command(name, cls=cls or Command, **settings)


def check_outputs(ctx: Any) -> None:
    """Raise ValueError where an output of the command is one of its inputs, or a file that it must not replace."""
    given: Mapping[str, Any] = ctx.params
    outputs: list[tuple[str, Path, Output]] = []
    inputs: dict[Path, str] = {}
    for option in ctx.command.params:
        value, read = given.get(option.name), output_of(option)
        called = option.opts[0] if option.opts[0].startswith("-") else option.name.upper()
        if read is None:
            inputs |= dict.fromkeys(_named_files(value), called)
        elif value is not None and os.fspath(value) != "-":
            outputs.append((called, Path(value), read))
    if ctx.parent is not None:
        inputs |= dict.fromkeys(_named_files(ctx.find_root().params.get("plugin")), "--plugin")
    for called, path, read in outputs:
        for source, name in inputs.items():
            _check_apart_from(called, path, name, source, read)
        if path.is_dir():
            if read.folder and not read.models and (path / MODELS_INDEX).exists():
                raise ValueError(
                    f"{called} {path}: it is a folder of models, which would be spoilt; name another folder"
                )
        elif read.file:
            check_replaceable(called, path, read.kind)
            _check_results(called, path, ctx.command_path.partition(" ")[2])


def _check_results(called: str, path: Path, command: str) -> None:
    """ValueError where results that another command wrote would be lost, unless `--overwrite` allows it."""
    if _permission.overwrite or not path.is_file():
        return
    kind = kind_of(path)
    if kind in RESULTS and kind not in _RESULTS_OF.get(command, ()):
        raise ValueError(
            f"{called} {path}: expected a new name, or a file that `{command}` wrote before; got results of kind "
            f"'{kind}'; name another, or pass --overwrite to replace it"
        )


def check_replaceable(called: str, path: Path, wanted: str | None = None) -> None:
    """Raise ValueError unless nothing is at `path`, or a file that this program wrote in the format of the name.

    `--overwrite` allows files of others too, but never a run log or a file in a folder of models.

    Args:
        called: The option or the purpose of the output, for the message.
        path: The file that is to be written.
        wanted: Its format; by default the ending of its name.
    """
    if not path.is_file() or path.stat().st_size == 0:
        return
    kind = kind_of(path)
    if kind == LOG:
        raise ValueError(f"{called} {path}: the record of a run is there, which would be lost; name another file")
    if (Path(os.path.realpath(path)).parent / MODELS_INDEX).exists() and kind is None:
        raise ValueError(f"{called} {path}: it belongs to a folder of models, which would be lost; name another file")
    if _permission.overwrite:
        return
    form = "json" if kind in RESULTS else "npz" if kind == "trace" else kind
    if form is None or form != (wanted or path.suffix.lower().lstrip(".")):
        raise ValueError(
            f"{called} {path}: expected a new name, or a file that this command wrote before; got another file; name "
            "another, or pass --overwrite to replace it"
        )


def _check_apart_from(called: str, path: Path, name: str, source: Path, read: Output) -> None:
    """ValueError where an output is the input `source`, or a file in it that the command reads."""
    if not path.exists():
        return
    if os.path.samefile(path, source):
        if path.is_dir() and read.models:
            return
        raise ValueError(f"{called} {path}: it is the same as {name} {source}, which the command reads; name another")
    inside = (
        source.is_dir() and path.is_file() and Path(os.path.realpath(path)).is_relative_to(os.path.realpath(source))
    )
    if inside and not os.path.samefile(source, Path.cwd()):
        kind = kind_of(path)
        if kind is None or kind in _READ:
            raise ValueError(f"{called} {path}: it belongs to {name} {source}, which the command reads; name another")


def _named_files(value: Any) -> Iterator[Path]:
    """The files and folders that an argument names, alone or as a part of it: `file.py:function`, `costs=FILE`, lists.

    `/dev/null` and its like are none.
    """
    if isinstance(value, Sequence) and not isinstance(value, str):
        for one in value:
            yield from _named_files(one)
        return
    if not isinstance(value, str | Path):
        return
    text = os.fspath(value)
    parts = {text, text.partition("=")[2], text.rpartition(":")[0], *text.split(",")}
    for part in filter(None, map(str.strip, parts)):
        with suppress(OSError, ValueError):
            path = Path(part)
            if path.is_file() or path.is_dir():
                yield path

"""Checks of command outputs: no file of the user is overwritten unless asked.

Every option that names an output uses one of the parsers here as `parser=`. `Commands` checks all outputs before a
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
"""The file that marks a folder of models."""
_READ: Final = frozenset({"compare", "sweep", "evaluate", "certify", "certify-case", LOG})
"""Kinds of files that commands read from a folder."""
_RESULTS_OF: Final[Mapping[str, tuple[str, ...]]] = {
    "compare": ("compare",),
    "sweep": ("sweep",),
    "premises": ("premises",),
    "check": ("invariance",),
    "certify": ("certify", "certify-case"),
}
"""Kinds of results that a command writes to an output option, and so may replace."""
_PLAIN: Final = (".png", ".webp")


Registered = TypeVar("Registered", bound=Callable[..., Any])


@dataclass(slots=True)
class _Permission:
    overwrite: bool = False


_permission: Final = _Permission()


def allow_overwriting(allowed: bool) -> None:
    """Set whether files that this program did not write may be replaced: `--overwrite`."""
    _permission.overwrite = allowed


@dataclass(frozen=True, slots=True)
class Output:
    """Parser of an option that names an output. It sees a trailing slash, which `Path` drops.

    Attributes:
        file: Whether it names a file.
        folder: Whether it names a folder; if both, the rest of the line decides.
        models: Whether a folder of models may be filled.
        kind: The format of the file, if its name does not tell it.
    """

    file: bool = True
    folder: bool = False
    models: bool = False
    kind: str | None = None

    @property
    def __name__(self) -> str:
        """The placeholder that usage shows."""
        return "path"

    def __call__(self, text: str | Path) -> Path:
        """Return the path; BadParameter for an empty name, `/`, or a trailing slash where a file is expected."""
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
    """Return the `Output` parser of an option; None if the option names no output."""
    info = getattr(getattr(option, "type_descriptor", None), "parameter_info", None)
    parser = getattr(info, "parser", None) or getattr(getattr(option, "type", None), "func", None)
    return parser if isinstance(parser, Output) else None


_RENAMED: Final[Mapping[str, str]] = {"--engines": "--models", "--models": "--model", "--engine": "--on"}
"""Old names of options and their new names, for commands that have the new option."""


class Command(TyperCommand):
    """A command that checks its outputs before it starts."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Refuse old option names, NaN, and numbers that only Python accepts: 1_000, other scripts, 1e-400."""
        values, _, _ = self._parsed(ctx, args)
        for option in self.params:
            read = _reader_of(option)
            value = values.get(option.name)
            for text in (value if isinstance(value, list | tuple) else [value]) if read is not None else ():
                if isinstance(text, str):
                    _check_number(option, text, ctx)
        return super().parse_args(ctx, args)

    def _parsed(self, ctx: Any, args: list[str]) -> Any:
        """Return the parsed arguments; BadParameter for the old name of an option."""
        try:
            return self.make_parser(ctx).parse_args(args=list(args))
        except Exception as error:  # Typer does not export its error for unknown options
            old = str(getattr(error, "option_name", ""))
            new = _RENAMED.get(old)
            if new is None or not any(new in option.opts for option in self.params):
                raise
            raise typer.BadParameter(f"{old} is called {new} now; pass {new} with the same value", ctx) from error

    def invoke(self, ctx: Any) -> Any:
        """Check the outputs, then run the command."""
        with bad_input():
            check_outputs(ctx)
        return super().invoke(ctx)


def _reader_of(option: Any) -> Callable[[str], float] | None:
    """Return the strict parser of an option's numbers; None if it takes no numbers."""
    info = getattr(option, "type_descriptor", None)
    kind = getattr(info, "annotation", None) or getattr(getattr(option, "type", None), "name", "")
    words = str(getattr(kind, "__name__", kind))
    return whole_number if words.startswith("int") else real_number if words.startswith("float") else None


def _check_number(option: Any, text: str, ctx: Any) -> None:
    """Raise BadParameter for NaN or a number that only Python accepts. Other errors are left to the option's check."""
    try:
        value = float(text)
    except ValueError:
        return
    plain = text.isascii() and "_" not in text and value == value
    if plain and (value != 0.0 or not set(text.lower().partition("e")[0]) & set("123456789")):
        return
    read = _reader_of(option)
    try:
        if read is not None:
            read(text)
    except ValueError as error:
        raise typer.BadParameter(str(error), ctx, option) from error


class TorchCommand(Command):
    """A command that imports packages of the training extra when it runs. Its help and completion need none."""

    def invoke(self, ctx: Any) -> Any:
        """Run the command; if a package is missing, say how to install it."""
        with needed(f"`{ctx.command_path}`", "cpu", "train"):
            return super().invoke(ctx)


class Commands(typer.Typer):
    """A Typer group of such commands."""

    def command(
        self, name: str | None = None, *, cls: type[TyperCommand] | None = None, **settings: Any
    ) -> Callable[[Registered], Registered]:
        """Register a command, as `typer.Typer.command` does."""
        return super().command(name, cls=cls or Command, **settings)


def check_outputs(ctx: Any) -> None:
    """Raise ValueError if an output of the command is also one of its inputs, or a file that it must not replace."""
    values: Mapping[str, Any] = ctx.params
    outputs: list[tuple[str, Path, Output]] = []
    inputs: dict[Path, str] = {}
    for option in ctx.command.params:
        value, read = values.get(option.name), output_of(option)
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
                    f"{called} {path}: this is a folder of models, and the output would corrupt it; name another folder"
                )
        elif read.file:
            check_replaceable(called, path, read.kind)
            _check_results(called, path, ctx.command_path.partition(" ")[2])


def _check_results(called: str, path: Path, command: str) -> None:
    """Raise ValueError if results of another command would be lost, unless `--overwrite` allows it."""
    if _permission.overwrite or not path.is_file():
        return
    kind = kind_of(path)
    if kind in RESULTS and kind not in _RESULTS_OF.get(command, ()):
        raise ValueError(
            f"{called} {path}: expected a new name, or a file that `{command}` wrote before; got results of kind "
            f"'{kind}'; name another, or pass --overwrite to replace it"
        )


def check_replaceable(called: str, path: Path, file_format: str | None = None) -> None:
    """Raise ValueError unless `path` is free or empty, or holds a file of this program in the same format.

    `--overwrite` also allows other files, but never a run log or a file in a folder of models.

    Args:
        called: The option or the purpose of the output, for the message.
        path: The file that is to be written.
        file_format: Its format; by default the ending of its name.
    """
    if not path.is_file() or path.stat().st_size == 0:
        return
    kind = kind_of(path)
    if kind == LOG:
        raise ValueError(f"{called} {path}: this file is the record of a run and is not replaced; name another file")
    if (Path(os.path.realpath(path)).parent / MODELS_INDEX).exists() and kind is None:
        raise ValueError(f"{called} {path}: this file belongs to a folder of models and is not replaced; name another")
    if _permission.overwrite:
        return
    form = "json" if kind in RESULTS else "npz" if kind == "trace" else kind
    if form is None or form != (file_format or path.suffix.lower().lstrip(".")):
        raise ValueError(
            f"{called} {path}: expected a new name, or a file that this command wrote before; got another file; name "
            "another, or pass --overwrite to replace it"
        )


def _check_apart_from(called: str, path: Path, name: str, source: Path, read: Output) -> None:
    """Raise ValueError if an output is the input `source`, or a file in it that the command reads."""
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
    """Yield the files and folders that an argument names: alone, in a list, or in `file.py:function` or `costs=FILE`.

    Special files such as `/dev/null` are not yielded.
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

"""Reads, checks and describes values of options."""

from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import fields
from typing import TYPE_CHECKING, Any, TypeVar

import typer

from underpaint.algos.registry import suggest
from underpaint.algos.rows import SamplingParams

if TYPE_CHECKING:
    from underpaint.runtime.methods.registry import MethodConfig

Number = TypeVar("Number", int, float)


def check_ray_gpu(backend: str, device: str | None = None) -> None:
    """Raise ValueError if an option names a GPU by its index, because Ray assigns a GPU to each process.

    Ray shows each process only its own GPU, as number 0.
    """
    for option, value in (("--backend", backend), ("--device", device or "")):
        name, _, index = value.partition(":")
        if index.isdecimal() and int(index):
            raise ValueError(
                f"{option} {value}: expected no GPU index, because Ray assigns a GPU to each process; pass {option} "
                f"{name}, and start Ray with CUDA_VISIBLE_DEVICES={index} to use that GPU"
            )


def describe_sampling(sampling: SamplingParams, vocab_size: int) -> str:
    """Describe the sampling for table titles: "temperature 1, top-k 5 of 1,024 codes, guidance 1"."""
    top_k = f"top-k {sampling.top_k:,} of" if sampling.top_k else "all"
    if sampling.top_k >= vocab_size:
        top_k = f"top-k {sampling.top_k:,}, which keeps all"
    cut = f", top-p {sampling.top_p:g}" if sampling.top_p < 1 else ""
    return f"temperature {sampling.temperature:g}, {top_k} {vocab_size:,} codes{cut}, guidance {sampling.guidance:g}"


def read_names(text: str) -> tuple[str, ...]:
    """Split names at commas."""
    return tuple(name.strip() for name in text.split(",") if name.strip())


def read_numbers(option: str, text: str, read: Callable[[str], Number]) -> tuple[Number, ...]:
    """Return the comma-separated numbers of `option`; ValueError for text that `read` rejects."""
    try:
        return tuple(read(part) for part in text.split(","))
    except ValueError as error:
        raise ValueError(f"{option}: expected numbers separated by commas, got {text[:80]!r}; {error}") from error


def check_promises(configs: "Iterable[MethodConfig]") -> None:
    """Raise ValueError if a plug-in's rule promises to be lossless but is not, as tables would call it lossless."""
    from underpaint.sim.exact.promise import check_promise

    for config in configs:
        if config.acceptance is not None:
            check_promise(*config.acceptance)


def settings_by_method(settings: list[str], names: tuple[str, ...]) -> dict[str, list[str]]:
    """Group `method.name=value` settings by method; ValueError for a method that is not in `names`."""
    by_method: dict[str, list[str]] = defaultdict(list)
    for setting in settings:
        method, dot, rest = setting.partition(".")
        if not dot or method not in names:
            hint = suggest(method, names) if names else "name one there"
            raise ValueError(f"--set {setting}: expected method.name=value with a method of --methods; {hint}")
        by_method[method].append(rest)
    return by_method


def refuse_given(context: typer.Context, names: Iterable[str | None], reason: str) -> None:
    """Raise ValueError if the user gave one of the parameters `names`; the message is its option, then `reason`."""
    refused = set(names)
    for option in context.command.params:
        source = context.get_parameter_source(option.name or "")
        if option.name in refused and source is not None and source.name != "DEFAULT":
            raise ValueError(f"{option.opts[0]} {reason}")


def option_words(options: Any) -> list[str]:
    """Return the command-line words of a dataclass of options, for those that differ from their defaults."""
    words: list[str] = []
    for one in fields(options):
        value = getattr(options, one.name)
        if value != one.default:
            name = "--prompts" if one.name == "prompts_file" else f"--{one.name.replace('_', '-')}"
            words += [name] if value is True else [name, str(value)]
    return words

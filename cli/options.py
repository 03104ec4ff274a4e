"""Options that several commands share."""

from collections import defaultdict
from typing import Annotated

import typer

from underpaint.algos.registry import suggest
from underpaint.algos.rows import SamplingParams
from underpaint.zoo.sides import SIDES

Temperature = Annotated[
    float, typer.Option(help="How much the target's distribution is flattened; 0 takes the likeliest token every time.")
]
Guidance = Annotated[
    float | None,
    typer.Option(help="Classifier-free guidance scale; 1 is none. Default: the one the model ships with."),
]
TopK = Annotated[int | None, typer.Option(help="Tokens kept by likelihood; 0 keeps all. Default: as the model ships.")]
TopP = Annotated[
    float | None, typer.Option(help="Smallest mass of likeliest tokens kept; 1 keeps all. Default: as the model ships.")
]
_SIDES = tuple(map(str, SIDES))
Side = Annotated[
    str,
    typer.Option(
        "--resolution",
        help="Side of the picture in pixels. None of 256 px ship; docs/how-to/train.md makes them.",
        metavar="|".join(_SIDES),
    ),
]


def read_side(text: str) -> int:
    """The side in pixels; ValueError for one that is none of `SIDES`."""
    if text not in _SIDES:
        raise ValueError(f"--resolution: expected one of {', '.join(_SIDES)}, got {text!r}")
    return int(text)


def read_sampler(
    temperature: float, guidance: float | None, top_k: int | None, top_p: float | None, shipped: SamplingParams
) -> SamplingParams:
    """The sampler asked for; what was left out is as the model ships. ValueError out of range."""
    return SamplingParams(
        guidance=shipped.guidance if guidance is None else guidance,
        temperature=temperature,
        top_k=shipped.top_k if top_k is None else top_k,
        top_p=shipped.top_p if top_p is None else top_p,
    )


def settings_by_method(settings: list[str], names: tuple[str, ...]) -> dict[str, list[str]]:
    """`method.name=value` settings sorted by method; ValueError for a method that is not among `names`."""
    found: dict[str, list[str]] = defaultdict(list)
    for setting in settings:
        method, dot, rest = setting.partition(".")
        if not dot or method not in names:
            raise ValueError(
                f"--set {setting}: expected method.name=value with a method of --methods; {suggest(method, names)}"
            )
        found[method].append(rest)
    return found

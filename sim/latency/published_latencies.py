"""Published times of passes beside the roofline's: what machines are calibrated on, and how far the model is off."""

import json
from dataclasses import dataclass, replace
from importlib.resources import files
from typing import Any, Final, NamedTuple

import numpy as np

from underpaint.artifacts.strict_json import build_typed
from underpaint.sim.latency.machines import DECODER_SIZES, MACHINES, DecoderSize, RooflineCosts

WITHIN: Final = 0.15
"""The relative error beyond which a published time needs a reason."""


@dataclass(frozen=True, slots=True)
class PublishedPass:
    """The time of a target pass as a report gives it.

    Args:
        source: The report, and the settings it names.
        machine: A known machine's name.
        decoder: A known decoder's name, or one of the file's own.
        ms: Of a pass, the host's share included.
        batch: Images of a pass; a guided decoder has two rows of each.
        cached: Positions in the cache, in the mean; None takes half of the picture.
        nodes: Positions of each row.
        weight_bytes: Of a weight; None takes the machine's.
        fitted: Whether the machine's figures were chosen by this row.
        reason: Why the model misses it by more than `WITHIN`.
    """

    source: str
    machine: str
    decoder: str
    ms: float
    batch: int = 1
    cached: int | None = None
    nodes: int = 1
    weight_bytes: float | None = None
    fitted: bool = False
    reason: str = ""


class CheckedPass(NamedTuple):
    """A published time beside the model's, in ms; error: predicted / published - 1."""

    row: PublishedPass
    predicted_ms: float
    error: float


def check_latencies() -> tuple[CheckedPass, ...]:
    """Every published time beside what the roofline of its settings says."""
    text = files("underpaint.sim.latency").joinpath("published_latencies.json").read_text(encoding="utf-8")
    values: dict[str, Any] = json.loads(text)
    own = {one["name"]: build_typed(DecoderSize, one, "decoder") for one in values["decoders"]}
    checked = []
    for plain in values["rows"]:
        row = build_typed(PublishedPass, plain, "published latency")
        machine = MACHINES[row.machine]
        if row.weight_bytes is not None:
            machine = replace(machine, weight_bytes=row.weight_bytes)
        size = own[row.decoder] if row.decoder in own else DECODER_SIZES[row.decoder]
        costs = RooflineCosts(machine, size, row.batch, row.cached)
        ms = float(costs.verify_ms(np.array([row.nodes]))[0]) + costs.step_overhead_ms
        checked.append(CheckedPass(row, ms, ms / row.ms - 1.0))
    return tuple(checked)

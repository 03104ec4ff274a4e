"""Compare published times of passes with the roofline model, which is calibrated on some of them."""

import json
from dataclasses import dataclass, replace
from importlib.resources import files
from typing import Any, Final, NamedTuple

import numpy as np

from underpaint.artifacts.strict_json import build_typed
from underpaint.sim.latency.machines import DECODER_SIZES, MACHINES, DecoderSize, RooflineCosts

WITHIN: Final = 0.15
"""A relative error above this needs a reason."""


@dataclass(frozen=True, slots=True)
class PublishedPass:
    """A published time of a target pass.

    Args:
        source: The report and its settings.
        machine: Name of a known machine.
        decoder: Name of a known decoder, or of one in the JSON file.
        ms: Time of a pass, including host time.
        batch: Images per pass; with guidance, each image has two rows.
        cached: Mean number of positions in the KV cache; None takes half of the image.
        nodes: Number of positions in each row.
        weight_bytes: Bytes per weight; None takes the machine's.
        fitted: Whether the machine's parameters were fitted to this row.
        reason: Why the prediction is off by more than `WITHIN`.
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
    """A published time and its prediction.

    Attributes:
        row: The published time and its settings.
        predicted_ms: The predicted time of a pass, including host time.
        error: predicted / published - 1.
    """

    row: PublishedPass
    predicted_ms: float
    error: float


def check_latencies() -> tuple[CheckedPass, ...]:
    """Predict every published time with the roofline of its settings."""
    text = files("underpaint.sim.latency").joinpath("published_latencies.json").read_text(encoding="utf-8")
    values: dict[str, Any] = json.loads(text)
    decoders = {one["name"]: build_typed(DecoderSize, one, "decoder") for one in values["decoders"]}
    checked = []
    for plain in values["rows"]:
        row = build_typed(PublishedPass, plain, "published latency")
        machine = MACHINES[row.machine]
        if row.weight_bytes is not None:
            machine = replace(machine, weight_bytes=row.weight_bytes)
        size = decoders[row.decoder] if row.decoder in decoders else DECODER_SIZES[row.decoder]
        costs = RooflineCosts(machine, size, row.batch, row.cached)
        ms = float(costs.verify_ms(np.array([row.nodes]))[0]) + costs.step_overhead_ms
        checked.append(CheckedPass(row, ms, ms / row.ms - 1.0))
    return tuple(checked)

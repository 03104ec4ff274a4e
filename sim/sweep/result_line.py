"""The lines of a sweep's files: the results of a job, and the results of a block of images of a long job."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Final, Literal, TypeAlias

from underpaint.artifacts.strict_json import Within, build_typed, parse_json
from underpaint.sim.report.statistics import Totals
from underpaint.sim.sweep.plan import TREES, Job, SweepPlan

_LARGEST: Final = 1e9
_Figure: TypeAlias = Annotated[float, Within(0.0, _LARGEST)]


@dataclass(frozen=True, slots=True)
class _ResultLine:
    """The result of a job. See `Job` for the first fields, and `sim.sweep.run` for the others. speedup: mean, low and
    high by machine. cycle_ms: mean ms per cycle by part of `ImageTimes`, by machine.
    """

    key: str
    model: str
    model_settings: str
    policy: str
    policy_settings: str
    rule: str
    rule_settings: str
    images: Annotated[int, Within(1, 1 << 40)]
    tokens_per_cycle: _Figure
    mean_depth: _Figure
    nodes_per_pass: _Figure
    target_passes: _Figure
    drafter_passes: _Figure
    speedup: Mapping[str, tuple[_Figure, Annotated[float, Within(-_LARGEST, _LARGEST)], _Figure]]
    cycle_ms: Mapping[str, tuple[_Figure, _Figure, _Figure, _Figure]]
    engine: Literal["loop", "lockstep"]
    alignment: Annotated[float, Within(-1.001, 1.001)] | None
    token_bias: Annotated[float, Within(-1e-6, 1.000001)] | None
    loop: str = TREES
    temperature: _Figure = 1.0


@dataclass(frozen=True, slots=True)
class BlockFigures:
    """The results of a block of a job's images, as recorded by long sweeps.

    Attributes:
        key: The job's key.
        first: Number of the block's first image.
        block: Images in a whole block.
        totals: Sums over the images of this block.
        engine: Whether the decoding loop or the lockstep path drew the images.
        alignment, token_bias: See `sim.exact.bias`; only set in the first block.
    """

    key: str
    first: Annotated[int, Within(0, 1 << 40)]
    block: Annotated[int, Within(1, 1 << 40)]
    totals: Totals
    engine: Literal["loop", "lockstep"]
    alignment: float | None
    token_bias: float | None


def read_block(line: Mapping[str, Any], plan: SweepPlan) -> BlockFigures:
    """Read a block from a line of a sweep's record; ValueError if it is invalid or its machines are not the plan's."""
    block = build_typed(BlockFigures, line, "a block")
    if block.totals.image_ms.keys() != set(plan.machines) or min(block.totals.images, block.totals.cycles) < 1:
        raise ValueError(f"a block: expected images on {', '.join(plan.machines)}, got {block.totals.image_ms.keys()}")
    return block


def check_line(line: Mapping[str, Any], machines: Sequence[str]) -> None:
    """Check a result line of a sweep over `machines`.

    Raises:
        ValueError: A field is missing, unknown, of the wrong type or out of range, or the key or machines are wrong.
    """
    result = build_typed(_ResultLine, line, "a result")
    for name in ("model_settings", "policy_settings", "rule_settings"):
        if not isinstance(parse_json(getattr(result, name), f"a result: {name}"), dict):
            raise ValueError(f"a result: {name}: expected settings as JSON, got {getattr(result, name)!r:.60}")
    if Job.of(line).key != result.key:
        raise ValueError(f"a result: key: expected {Job.of(line).key}, which is of its settings, got {result.key!r}")
    for name in ("speedup", "cycle_ms"):
        if getattr(result, name).keys() != set(machines):
            got = ", ".join(getattr(result, name))
            raise ValueError(f"a result: {name}: expected {', '.join(machines)}, got {got}")
    for machine, (mean, low, high) in result.speedup.items():
        if not low <= mean <= high:
            raise ValueError(f"a result: speedup: {machine}: expected an interval round {mean}, got {low} to {high}")

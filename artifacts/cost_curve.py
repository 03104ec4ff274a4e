"""Measured cost curves: the file format, its reader and validation, and an engine's costs by a curve.

`underpaint costs` measures this machine and writes the file. Every part is milliseconds by size: (size, ms) pairs with
sizes rising from 1.
"""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any, Final, Literal, TypeAlias

from underpaint.algos.draft.costs import EngineCosts, TreeCosts
from underpaint.artifacts.files import read_regular
from underpaint.artifacts.knee import Knee, find_knee
from underpaint.artifacts.strict_json import Within, build_typed, check_format, parse_json

MOST_MS: Final = 1e9
"""Largest time of one pass: eleven days."""
_Ms: TypeAlias = Annotated[float, Within(0.0, MOST_MS)]
Curve: TypeAlias = tuple[tuple[Annotated[int, Within(1, 1 << 20)], float], ...]
"""(size, ms) pairs, sizes rising from 1."""

HostFamily: TypeAlias = Literal["one_call", "sampled", "ranked", "iid", "iid_paths", "cost_aware", "cost_aware_chain"]
"""How the host drafts. one_call: a chain in one drafter call. sampled, ranked: a tree with sampled or with the most
likely siblings, in one call if the drafter can. iid, iid_paths: a tree whose siblings are drawn with replacement,
verified by node or by whole path. cost_aware: a tree with levels and nodes chosen by cost. cost_aware_chain: a chain in
one call or no draft, chosen by a policy that compared their costs."""

FORMAT: Final = 3
"""Version of the file format."""
_REMEDY: Final = "measure it again with `underpaint costs --renew --full --export FILE`"
IN_CYCLE: Final = "in_cycle"
DRIFT: Final = 4 / 3
"""Times of one pass that differ by a larger factor belong to two states of the machine."""
IN_GRID: Final = "in_grid"


def check_curve(where: str, what: str, unit: str, curve: Curve) -> None:
    """Raise ValueError, naming the part, unless sizes rise from 1 and all times are positive."""
    sizes = [size for size, _ in curve]
    if sizes[:1] != [1] or any(low >= high for low, high in pairwise(sizes)):
        raise ValueError(f"{where}: {what} must name rising sizes from 1 {unit} on, got {sizes}")
    if not all(0.0 < ms <= MOST_MS for _, ms in curve):
        raise ValueError(f"{where}: {what} must hold positive times of at most {MOST_MS:g} ms, got {curve}")


@dataclass(frozen=True, slots=True)
class HostCosts:
    """Host time in ms per cycle, per drafted level, per scored node, and per cycle whose rule pools codes."""

    cycle: _Ms
    level: _Ms
    node: _Ms
    pooled: _Ms


@dataclass(frozen=True, slots=True)
class TreeCallCosts:
    """Time in ms of a call that drafts a whole tree, and of each level in it by the number of expanded nodes."""

    call: _Ms
    levels: Curve


@dataclass(frozen=True, slots=True)
class PlainCosts:
    """Time in ms of a pass of plain autoregression, and of the host around it."""

    target_ms: _Ms
    host_ms: _Ms


@dataclass(frozen=True, slots=True)
class InCycleCosts:
    """Times in ms inside decoding loops, where drafter passes and host work empty the caches, so passes take longer.

    Attributes:
        plain: Times of plain autoregression.
        target_ms: Target passes by nodes, in cycles that draft.
        draft_ms: Drafter passes by expanded nodes.
        chain_ms: One call that drafts a chain, by levels; empty if the drafter cannot do this.
        host_ms: Host times by family.
        tree_ms: Trees drafted in one call, by family; empty if the drafter cannot do this.
        rounds: Number of measured rounds.
        window_ms: Target passes over Jacobi windows by nodes, between which no drafter empties the caches; empty if
            not measured.
    """

    plain: PlainCosts
    target_ms: Curve
    draft_ms: Curve
    chain_ms: Curve
    host_ms: Mapping[HostFamily, HostCosts]
    tree_ms: Mapping[HostFamily, TreeCallCosts] = field(default_factory=dict)
    rounds: int = 0
    window_ms: Curve = ()

    def __post_init__(self) -> None:
        check_curve(IN_CYCLE, "target_ms", "node", self.target_ms)
        if self.window_ms:
            check_curve(IN_CYCLE, "window_ms", "node", self.window_ms)
        check_curve(IN_CYCLE, "draft_ms", "node", self.draft_ms)
        if self.chain_ms:
            check_curve(IN_CYCLE, "chain_ms", "level", self.chain_ms)
        for family, tree in self.tree_ms.items():
            check_curve(IN_CYCLE, f"tree_ms of '{family}'", "node", tree.levels)

    @property
    def fuses_chains(self) -> bool:
        """Whether the measured drafter drafts a chain in one call."""
        return bool(self.chain_ms)

    @property
    def plain_ms(self) -> float:
        """Time in ms of a step of plain autoregression."""
        return self.plain.target_ms + self.plain.host_ms


@dataclass(frozen=True, slots=True)
class GridHostCosts:
    """Host time in ms per pass over cells, per drawn cell, and per cell whose draft is judged."""

    step: _Ms
    cell: _Ms
    judged: _Ms


@dataclass(frozen=True, slots=True)
class LowCosts:
    """Times in ms of a smaller target with 1 / `ratio` of the side, in 8 bits or not; parts as in `InGridCosts`."""

    ratio: int
    int8: bool
    target_ms: Curve
    begin_ms: _Ms


@dataclass(frozen=True, slots=True)
class InGridCosts:
    """Times in ms inside the loops of ZipAR and MuLo-SD, which decide cells of a grid in any order.

    Attributes:
        target_ms: Target passes by the number of input tokens.
        begin_ms: The pass over the condition.
        host_ms: Host times.
        low: Smaller targets that draft.
        resample_ms: Enlarging a whole picture, by "KIND/RATIO".
        rounds: Number of measured rounds.
    """

    target_ms: Curve
    begin_ms: _Ms
    host_ms: GridHostCosts
    low: tuple[LowCosts, ...] = ()
    resample_ms: Mapping[str, _Ms] = field(default_factory=dict)
    rounds: int = 0

    def __post_init__(self) -> None:
        check_curve(IN_GRID, "target_ms", "node", self.target_ms)
        for one in self.low:
            check_curve(IN_GRID, f"target_ms of low ratio {one.ratio}", "node", one.target_ms)


@dataclass(frozen=True, slots=True)
class CostCurveFile:
    """The content of a cost curve's file.

    Attributes:
        name: The file's name without its suffix.
        fingerprint: SHA-256 of the file's bytes.
        model: The models that were measured.
        verify_ms: Target passes in ms by nodes, repeated alone.
        draft_ms: Drafter passes in ms by expanded nodes, repeated alone.
        overhead_ms: Host time in ms per cycle beyond the passes.
        in_grid: Times in loops over grid cells; None if not measured.
        in_cycle: Times in decoding loops; None if not measured.
        measured_on: What the curve is valid for: processor, cores, engine, SHA-256 of the models, threads and rows per
            pass; empty in files without it.
        machine: The machine, as in every result.
        content: The file's bytes.
    """

    name: str
    fingerprint: str
    model: Mapping[str, Any]
    verify_ms: Curve
    draft_ms: Curve
    overhead_ms: float
    in_grid: InGridCosts | None
    in_cycle: InCycleCosts | None
    measured_on: Mapping[str, Any] = field(default_factory=dict)
    machine: Mapping[str, Any] = field(default_factory=dict)
    content: bytes = field(default=b"", repr=False)

    @property
    def knee(self) -> Knee:
        """The knee of the target's passes, repeated alone."""
        return find_knee(self.verify_ms)

    def disturbed(self) -> str | None:
        """A message if the machine was busy during part of the measurement, else None.

        A pass repeated alone costs no more than the same pass inside a decoding loop, which starts with empty caches.
        """
        alone = self.verify_ms[0][1]
        if self.in_cycle is None or alone <= DRIFT * self.in_cycle.plain.target_ms:
            return None
        return (
            f"the machine was disturbed while this curve was measured: a plain pass took {alone:.2f} ms alone and "
            f"{self.in_cycle.plain.target_ms:.2f} ms inside a decoding loop, which should be no less; measure it again "
            "with `underpaint costs --renew`"
        )

    def outdated(self, plain_ms: float) -> str | None:
        """Return a message if passes cost something else now, else None.

        Args:
            plain_ms: Time of a plain pass now, in ms.
        """
        then = None if self.in_cycle is None else self.in_cycle.plain.target_ms
        if then is None or then / DRIFT <= plain_ms <= then * DRIFT:
            return None
        return (
            f"a plain pass took {plain_ms:.2f} ms here, and {then:.2f} ms when the cost curve was measured: what "
            "chooses by it may choose worse; measure it again with `underpaint costs --renew`"
        )

    def to_record(self) -> dict[str, Any]:
        """The curve's entry in a record of results: the fingerprint, the knee and the target's passes."""
        return {"fingerprint": self.fingerprint, "knee": self.knee._asdict(), "verify_ms": self.verify_ms}


def read_cost_curve(path: Path) -> CostCurveFile:
    """Read a cost curve's file; raises ValueError, with its name and the fault, if it is missing or invalid."""
    try:
        content = read_regular(path)
    except OSError as error:
        raise ValueError(f"{path}: expected a cost curve ({error!r}); {_REMEDY}") from error
    return parse_cost_curve(content, path)


@dataclass(frozen=True, slots=True)
class _Content:
    """The fields of a file; fields without a type are for people."""

    format: int
    verify_ms: Curve
    draft_ms: Curve
    overhead_ms: _Ms = 0.0
    in_cycle: InCycleCosts | None = None
    in_grid: InGridCosts | None = None
    model: Mapping[str, Any] = field(default_factory=dict)
    measured_on: Mapping[str, Any] = field(default_factory=dict)
    machine: Mapping[str, Any] = field(default_factory=dict)
    benchmark: Any = None
    sampling: Any = None
    full: Any = None
    threads: Any = None
    rounds: Any = None
    seconds: Any = None
    verify_spread_ms: Any = None
    draft_spread_ms: Any = None
    command: Any = None


def parse_cost_curve(content: bytes, path: Path) -> CostCurveFile:
    """Parse the content of the cost curve's file at `path`; raises ValueError as `read_cost_curve`."""
    try:
        values = parse_json(content)
        if not isinstance(values, dict):
            raise ValueError(f"expected an object, got {str(values)[:60]!r}")
    except ValueError as error:
        raise ValueError(f"{path}: no cost curve: {error}; {_REMEDY}") from error
    try:
        check_format(values.get("format"), FORMAT, _REMEDY)
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from error
    try:
        curve = build_typed(_Content, values, "the curve")
    except ValueError as error:
        raise ValueError(f"{path}: {error}; {_REMEDY}") from error
    check_curve(str(path), "verify_ms", "node", curve.verify_ms)
    check_curve(str(path), "draft_ms", "node", curve.draft_ms)
    fingerprint = hashlib.sha256(content).hexdigest()
    costs = curve.verify_ms, curve.draft_ms, curve.overhead_ms, curve.in_grid, curve.in_cycle
    return CostCurveFile(path.stem, fingerprint, curve.model, *costs, curve.measured_on, curve.machine, content)


def engine_costs(curve: CostCurveFile) -> EngineCosts:
    """The costs of a curve for cost-aware policies; raises ValueError if it has none for them.

    With `in_cycle`, passes cost what they do inside decoding loops, and the host's share of a cycle, node or level is
    added to its pass. If chains in one call were compared with plain steps, both have their costs from that loop,
    because drafts also slow the plain steps between them. Otherwise passes cost what they do when repeated alone, and
    `overhead_ms` is added to every target pass.
    """
    if curve.in_cycle is None:
        verify = tuple((nodes, ms + curve.overhead_ms) for nodes, ms in curve.verify_ms)
        return EngineCosts(verify, curve.draft_ms, fingerprint=curve.fingerprint)
    within = curve.in_cycle
    if "cost_aware" not in within.host_ms:
        raise ValueError(f"{curve.name}.json: host_ms of '{IN_CYCLE}' holds no 'cost_aware'; {_REMEDY}")
    host = within.host_ms["cost_aware"]
    verify = tuple((nodes, ms + host.cycle + host.node * nodes) for nodes, ms in within.target_ms)
    costs = EngineCosts(verify, tuple((nodes, ms + host.level) for nodes, ms in within.draft_ms))
    chain = within.host_ms.get("cost_aware_chain")
    if not within.chain_ms or chain is None:
        costs = costs._replace(plain_ms=within.plain_ms)
    else:
        plain_ms = within.target_ms[0][1] + chain.cycle + chain.node
        costs = costs._replace(chain_ms=_chain_ms(within.chain_ms, host, chain), plain_ms=plain_ms)
    if costs.plain_ms is None or costs.plain_ms <= 0.0:
        raise ValueError(f"{curve.name}.json: a plain step must take a positive time, got {costs.plain_ms}")
    return costs._replace(fingerprint=curve.fingerprint, trees=_tree_costs(within))


def _tree_costs(within: InCycleCosts) -> dict[str, TreeCosts]:
    """Static trees in one call; if only chains in one call were measured, trees have their costs."""
    names: tuple[HostFamily, ...] = ("sampled", "ranked")
    costs: dict[str, TreeCosts] = {}
    for name in names:
        tree, host = within.tree_ms.get(name), within.host_ms.get(name)
        if tree is None or host is None:
            host = within.host_ms.get("one_call")
            if not within.chain_ms or host is None:
                continue
            (first, first_ms), (last, last_ms) = within.chain_ms[0], within.chain_ms[-1]
            level = max(0.0, (last_ms - first_ms) / (last - first)) if last > first else first_ms
            call = max(0.0, first_ms - level)
        else:
            call, level = tree.call, tree.levels[0][1]
        verify = tuple((nodes, ms + host.cycle + host.node * nodes) for nodes, ms in within.target_ms)
        costs[name] = TreeCosts(verify, call, level + host.level)
    return costs


def read_engine_costs(path: Path) -> EngineCosts:
    """Read a curve's file for cost-aware policies; raises ValueError as `read_cost_curve` and `engine_costs`."""
    return engine_costs(read_cost_curve(path))


def _chain_ms(calls: Curve, tree: HostCosts, chain: HostCosts) -> Curve:
    """ms of a call, plus host time in such a cycle beyond what counts with the target pass."""
    cycle, node = chain.cycle - tree.cycle, chain.node - tree.node
    return tuple((levels, ms + chain.level * levels + max(0.0, cycle + node * (levels + 1))) for levels, ms in calls)

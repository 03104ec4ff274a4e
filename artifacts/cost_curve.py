"""Measured cost curves: their file's format, reader and validation, and what cost-aware policies take from them.

`underpaint costs` measures one of this machine and writes the file. Every part is milliseconds by size: (size, ms)
pairs, sizes rising from 1.
"""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final, Literal, NamedTuple, TypeAlias, cast, get_args, get_type_hints

from underpaint.algos.draft.spec import PolicySpec
from underpaint.algos.registry import settings_fields
from underpaint.artifacts.files import read_regular
from underpaint.artifacts.knee import Knee, find_knee
from underpaint.artifacts.strict_json import check_format, parse_json

Curve: TypeAlias = tuple[tuple[int, float], ...]
"""(size, ms) pairs, sizes rising from 1."""

HostFamily: TypeAlias = Literal["one_call", "sampled", "ranked", "cost_aware", "cost_aware_chain"]
"""How the host drafts: a chain in one call of the drafter; a tree with sampled siblings; a tree with the likeliest ones
(both in one call where the drafter can); a tree whose levels and nodes are chosen by cost; a chain in one call, or
nothing, where a policy compared both by their costs."""

FORMAT: Final = 3
"""Of the file."""
_REMEDY: Final = "measure it again with `underpaint costs --renew --full --export FILE`"
MOST_MS: Final = 1e9
"""Of one pass: eleven days."""
_MOST_SIZE: Final = 1 << 20
IN_CYCLE: Final = "in_cycle"
DRIFT: Final = 4 / 3
"""Times of one pass that differ by more than this factor are of two states of the machine."""
IN_GRID: Final = "in_grid"


_KNOWN: Final = frozenset(
    (
        *("format", "benchmark", "model", "measured_on", "sampling", "full", "threads", "rounds", "seconds"),
        *("verify_ms", "verify_spread_ms", "draft_ms", "draft_spread_ms", "overhead_ms", "machine", "command"),
        *("in_cycle", "in_grid"),
    )
)
"""Everything that a file may hold, what only a person reads too."""


def check_curve(where: str, what: str, unit: str, curve: Curve) -> None:
    """Raise ValueError, naming the part, unless sizes rise from 1 and all times are positive."""
    sizes = [size for size, _ in curve]
    if sizes[:1] != [1] or any(low >= high for low, high in pairwise(sizes)):
        raise ValueError(f"{where}: {what} must name rising sizes from 1 {unit} on, got {sizes}")
    if not all(0.0 < ms <= MOST_MS for _, ms in curve):
        raise ValueError(f"{where}: {what} must hold positive times of at most {MOST_MS:g} ms, got {curve}")


class HostCosts(NamedTuple):
    """ms of the host: of a cycle, of each drafted level, of each scored node, and of a cycle whose rule pools codes."""

    cycle: float
    level: float
    node: float
    pooled: float


class TreeCallCosts(NamedTuple):
    """ms of a call that drafts a whole tree, and of each level in it by the nodes that it expands."""

    call: float
    levels: Curve


@dataclass(frozen=True, slots=True)
class InCycleCosts:
    """ms of what happens inside decoding loops, where a pass takes longer than the same pass repeated alone: the
    drafter's passes and the host's work between have emptied the caches.

    plain_target_ms, plain_host_ms: of a pass of plain autoregression, and of the host around it.
    target: of a target pass by its nodes, in cycles that draft. draft: of a drafter pass by the nodes it expands.
    chain: of one call that drafts a chain, by levels; tree: of trees that one call drafts, by family ("sampled" and
    "ranked"); empty where the drafter has none.
    host: by family.
    """

    plain_target_ms: float
    plain_host_ms: float
    target: Curve
    draft: Curve
    chain: Curve
    host: Mapping[HostFamily, HostCosts]
    tree: Mapping[HostFamily, TreeCallCosts] = field(default_factory=dict)

    def __post_init__(self) -> None:
        check_curve(IN_CYCLE, "target_ms", "node", self.target)
        check_curve(IN_CYCLE, "draft_ms", "node", self.draft)
        if self.chain:
            check_curve(IN_CYCLE, "chain_ms", "level", self.chain)
        for family, tree in self.tree.items():
            check_curve(IN_CYCLE, f"tree_ms of '{family}'", "node", tree.levels)
            if not 0.0 <= tree.call <= MOST_MS:
                raise ValueError(f"{IN_CYCLE}: tree_ms of '{family}': a call must take at least 0 ms, got {tree.call}")
        for name, parts in (("plain", (self.plain_target_ms, self.plain_host_ms)), *self.host.items()):
            if not all(0.0 <= part <= MOST_MS for part in parts):
                raise ValueError(f"{IN_CYCLE}: times of '{name}' must be at least 0, got {tuple(parts)}")

    @property
    def fuses_chains(self) -> bool:
        """Whether the measured drafter drafts a chain in one call."""
        return bool(self.chain)

    @property
    def plain_ms(self) -> float:
        """A step of plain autoregression."""
        return self.plain_target_ms + self.plain_host_ms


@dataclass(frozen=True, slots=True)
class CostCurveFile:
    """What a cost curve's file holds.

    name: of the file, without its ending. content: its bytes; fingerprint: their SHA-256. model: the models that
    were measured.
    measured_on: what the curve holds for: processor, cores, engine, SHA-256 of the models, threads and rows a pass;
    empty in files that do not say. machine: as every result tells it.
    verify_ms: target passes by nodes, draft_ms: drafter passes by nodes expanded, both repeated alone. overhead_ms: of
    the host, a cycle beyond the passes. in_grid: target passes by the tokens that they are fed, inside loops that
    decide cells of a grid in any order; empty where they were not measured. in_cycle: None where it was not measured.
    """

    name: str
    fingerprint: str
    model: Mapping[str, Any]
    verify_ms: Curve
    draft_ms: Curve
    overhead_ms: float
    in_grid: Curve
    in_cycle: InCycleCosts | None
    measured_on: Mapping[str, Any] = field(default_factory=dict)
    machine: Mapping[str, Any] = field(default_factory=dict)
    content: bytes = field(default=b"", repr=False)

    @property
    def knee(self) -> Knee:
        """Of the target's passes, repeated alone."""
        return find_knee(self.verify_ms)

    def disturbed(self) -> str | None:
        """What tells that the machine did other work during one part of the measurement; None where nothing does.

        A pass repeated alone costs no more than the same pass inside a decoding loop, which finds its caches empty.
        """
        alone = self.verify_ms[0][1]
        if self.in_cycle is None or alone <= DRIFT * self.in_cycle.plain_target_ms:
            return None
        return (
            f"the machine was disturbed while this curve was measured: a plain pass took {alone:.2f} ms alone and "
            f"{self.in_cycle.plain_target_ms:.2f} ms inside a decoding loop, which should be no less; measure it again "
            "with `underpaint costs --renew`"
        )

    def outdated(self, plain_ms: float) -> str | None:
        """What tells that passes cost something else now; None where nothing does. plain_ms: of a plain pass, now."""
        then = None if self.in_cycle is None else self.in_cycle.plain_target_ms
        if then is None or then / DRIFT <= plain_ms <= then * DRIFT:
            return None
        return (
            f"a plain pass took {plain_ms:.2f} ms here, and {then:.2f} ms when the cost curve was measured: what "
            "chooses by it may choose worse; measure it again with `underpaint costs --renew`"
        )

    def told(self) -> dict[str, Any]:
        """What a record of results says of it: the fingerprint, the knee and the target's passes."""
        return {"fingerprint": self.fingerprint, "knee": self.knee._asdict(), "verify_ms": self.verify_ms}


def read_cost_curve(path: Path) -> CostCurveFile:
    """A cost curve's file; ValueError, naming it and what is wrong with it, where it is something else or missing."""
    try:
        content = read_regular(path)
    except OSError as error:
        raise ValueError(f"{path}: expected a cost curve ({error!r}); {_REMEDY}") from error
    return parse_cost_curve(content, path)


def parse_cost_curve(content: bytes, path: Path) -> CostCurveFile:
    """The content of a cost curve's file of that path; ValueError as `read_cost_curve`."""
    try:
        held = _object(parse_json(content), "the file")
    except ValueError as error:
        raise ValueError(f"{path}: no cost curve: {error}; {_REMEDY}") from error
    try:
        check_format(held.get("format"), FORMAT, _REMEDY)
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from error
    try:
        unknown = sorted(held.keys() - _KNOWN)
        if unknown:
            raise ValueError(f"unknown field '{unknown[0]}'")
        within = held.get(IN_CYCLE)
        verify, draft = _curve(held["verify_ms"]), _curve(held["draft_ms"])
        overhead = _ms(held.get("overhead_ms", 0.0))
        grid = _curve(_object(held[IN_GRID], IN_GRID)["target_ms"]) if IN_GRID in held else ()
        model, machine, measured_on = (
            _object(held.get(name, {}), name) for name in ("model", "machine", "measured_on")
        )
    except (ValueError, KeyError) as error:
        raise ValueError(
            f"{path}: expected JSON with verify_ms and draft_ms, each [[nodes, ms], ...] ({error}); {_REMEDY}"
        ) from error
    check_curve(str(path), "verify_ms", "node", verify)
    check_curve(str(path), "draft_ms", "node", draft)
    if grid:
        check_curve(str(path), IN_GRID, "node", grid)
    if not 0.0 <= overhead <= MOST_MS:
        raise ValueError(f"{path}: overhead_ms must be a time of at least 0, got {overhead}")
    fingerprint = hashlib.sha256(content).hexdigest()
    within = _in_cycle(path, within)
    return CostCurveFile(
        *(path.stem, fingerprint, model, verify, draft, overhead, grid, within), measured_on, machine, content
    )


def _in_cycle(path: Path, part: Any) -> InCycleCosts | None:
    if part is None:
        return None
    try:
        part = _object(part, IN_CYCLE)
        plain = _object(part["plain"], "plain")
        host = {
            cast(HostFamily, name): HostCosts(**{key: _ms(ms) for key, ms in _object(one, name).items()})
            for name, one in _object(part["host_ms"], "host_ms").items()
        }
        unknown = host.keys() - set(get_args(HostFamily))
        if unknown:
            raise ValueError(f"host_ms holds {', '.join(sorted(unknown))}")
        return InCycleCosts(
            _ms(plain["target_ms"]),
            _ms(plain["host_ms"]),
            _curve(part["target_ms"]),
            _curve(part["draft_ms"]),
            _curve(part["chain_ms"]),
            host,
            _trees(part.get("tree_ms", {})),
        )
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(f"{path}: '{IN_CYCLE}' is not as `underpaint costs` writes it ({error}); {_REMEDY}") from error


def _trees(part: Any) -> dict[HostFamily, TreeCallCosts]:
    names: tuple[HostFamily, ...] = ("sampled", "ranked")
    part = {name: _object(one, "tree_ms") for name, one in _object(part, "tree_ms").items()}
    unknown = part.keys() - set(names)
    if unknown:
        raise ValueError(f"tree_ms holds {', '.join(sorted(unknown))}")
    return {
        name: TreeCallCosts(_ms(part[name]["call"]), _curve(part[name]["levels"])) for name in names if name in part
    }


def _curve(pairs: Any) -> Curve:
    if not isinstance(pairs, list) or not all(isinstance(pair, list) and len(pair) == 2 for pair in pairs):
        raise ValueError(f"expected pairs of a size and ms, got {str(pairs)[:60]}")
    if not all(type(size) is int and size <= _MOST_SIZE for size, _ in pairs):
        raise ValueError(f"expected sizes in whole numbers up to {_MOST_SIZE}, got {str(pairs)[:60]}")
    return tuple((size, _ms(ms)) for size, ms in pairs)


def _ms(value: Any) -> float:
    if type(value) not in (int, float):
        raise ValueError(f"expected a number of ms, got {str(value)[:60]!r}")
    return float(value)


def _object(value: Any, what: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise ValueError(f"{what}: expected an object, got {str(value)[:60]!r}")
    return value


class TreeCosts(NamedTuple):
    """What trees cost that the drafter drafts in one call, the host's share in each part: target passes by nodes, the
    call, and each level in it."""

    verify_ms: Curve
    call_ms: float
    draft_ms: float


class EngineCosts(NamedTuple):
    """What a cost-aware policy takes from a curve.

    verify_ms: of a target pass by its nodes. draft_ms: of a drafter pass by the nodes it expands. chain_ms: of a chain
    drafted in one call, by its levels; None where that is not known, or the drafter cannot. plain_ms: of a cycle that
    drafts nothing; None where that is not known apart from a target pass over one node. fingerprint: of the curve's
    file, "" where the costs come from none. trees: of static trees that one call drafts, by how their siblings are
    chosen ("sampled" and "ranked"); none where the drafter cannot.
    """

    verify_ms: Curve
    draft_ms: Curve
    chain_ms: Curve | None = None
    plain_ms: float | None = None
    fingerprint: str = ""
    trees: Mapping[str, TreeCosts] = MappingProxyType({})

    def settings_for(self, spec: PolicySpec) -> dict[str, Any]:
        """The settings of a cost-aware policy. Where `draft_ms` is one number, it is that of a pass over one node.

        A policy with a setting `call_ms` drafts a whole tree in one call, and takes the prices of those. One with a
        setting `tree_ms` may draft such a tree of drawn siblings: the call, with what the host does in such a cycle
        more than in others, and each level.
        """
        known = settings_fields(spec.make)
        call = self.trees.get("ranked" if spec.drawn == "top_k" else "sampled")
        if "call_ms" in known and call is not None:
            return call._asdict()
        found: dict[str, Any] = {"verify_ms": self.verify_ms, "draft_ms": self.draft_ms}
        if get_type_hints(spec.make)["draft_ms"] is float:
            found["draft_ms"] = self.draft_ms[0][1]
        drawn = self.trees.get("sampled")
        if "tree_ms" in known and drawn is not None:
            more = max(0.0, drawn.verify_ms[0][1] - self.verify_ms[0][1])
            found["tree_ms"] = (drawn.call_ms + more, drawn.draft_ms)
        return {**found, **{name: getattr(self, name) for name in ("chain_ms", "plain_ms") if name in known}}


def engine_costs(curve: CostCurveFile) -> EngineCosts:
    """The costs of a curve for cost-aware policies; ValueError where it holds none for them.

    Where it was measured `in_cycle`, passes cost what they do inside decoding loops, and the host's share of a cycle, a
    node or a level goes to the pass that it belongs to. Where chains in one call were compared with plain steps, both
    cost what they do in that loop: drafts between them slow plain steps as well. Else passes cost what they do when
    repeated alone, and `overhead_ms` is added to every target pass.
    """
    if curve.in_cycle is None:
        verify = tuple((nodes, ms + curve.overhead_ms) for nodes, ms in curve.verify_ms)
        return EngineCosts(verify, curve.draft_ms, fingerprint=curve.fingerprint)
    within = curve.in_cycle
    if "cost_aware" not in within.host:
        raise ValueError(f"{curve.name}.json: host_ms of '{IN_CYCLE}' holds no 'cost_aware'; {_REMEDY}")
    own = within.host["cost_aware"]
    verify = tuple((nodes, ms + own.cycle + own.node * nodes) for nodes, ms in within.target)
    found = EngineCosts(verify, tuple((nodes, ms + own.level) for nodes, ms in within.draft))
    chain = within.host.get("cost_aware_chain")
    if not within.chain or chain is None:
        found = found._replace(plain_ms=within.plain_ms)
    else:
        plain_ms = within.target[0][1] + chain.cycle + chain.node
        found = found._replace(chain_ms=_chain_ms(within.chain, own, chain), plain_ms=plain_ms)
    if found.plain_ms is None or found.plain_ms <= 0.0:
        raise ValueError(f"{curve.name}.json: a plain step must take a positive time, got {found.plain_ms}")
    return found._replace(fingerprint=curve.fingerprint, trees=_tree_costs(within))


def _tree_costs(within: InCycleCosts) -> dict[str, TreeCosts]:
    """Static trees in one call; where only chains in one call were measured, they cost what those do."""
    names: tuple[HostFamily, ...] = ("sampled", "ranked")
    found: dict[str, TreeCosts] = {}
    for name in names:
        tree, host = within.tree.get(name), within.host.get(name)
        if tree is None or host is None:
            host = within.host.get("one_call")
            if not within.chain or host is None:
                continue
            (first, first_ms), (last, last_ms) = within.chain[0], within.chain[-1]
            level = max(0.0, (last_ms - first_ms) / (last - first)) if last > first else first_ms
            call = max(0.0, first_ms - level)
        else:
            call, level = tree.call, tree.levels[0][1]
        verify = tuple((nodes, ms + host.cycle + host.node * nodes) for nodes, ms in within.target)
        found[name] = TreeCosts(verify, call, level + host.level)
    return found


def read_engine_costs(path: Path) -> EngineCosts:
    """The costs of a curve's file for cost-aware policies; ValueError as `read_cost_curve` and `engine_costs`."""
    return engine_costs(read_cost_curve(path))


def _chain_ms(calls: Curve, tree: HostCosts, chain: HostCosts) -> Curve:
    """ms of a call, and of the host in such a cycle beyond what counts with the target pass."""
    cycle, node = chain.cycle - tree.cycle, chain.node - tree.node
    return tuple((levels, ms + chain.level * levels + max(0.0, cycle + node * (levels + 1))) for levels, ms in calls)

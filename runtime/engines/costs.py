"""What an engine's passes cost, as measured: the settings of the tree policies that choose by cost."""

from __future__ import annotations

import json
from collections.abc import Mapping
from math import inf
from pathlib import Path
from typing import Any, Final, NamedTuple

from underpaint.runtime.methods.settings import Curve, Shown, settings_of

SETTING: Final = "costs"
"""The name by which a user points such a policy to a file."""
_PARTS: Final = ("verify_ms", "draft_ms")
_OPTIONAL: Final = ("chain_ms", "plain_ms")
_WITHIN: Final = "in_cycle"


class EngineCosts(NamedTuple):
    """(size, ms) pairs, sizes rising from 1.

    verify_ms: of a target pass by its nodes. draft_ms: of a drafter pass by the nodes it expands. chain_ms: of a chain
    drafted in one call, by its levels; None where that is not known, or the drafter cannot. plain_ms: of a cycle that
    drafts nothing; None where that is not known apart from a target pass over one node.
    """

    verify_ms: Curve
    draft_ms: Curve
    chain_ms: Curve | None = None
    plain_ms: float | None = None

    def settings_for(self, make: Any) -> Mapping[str, Shown]:
        """The policy's settings. Where `draft_ms` is one number, it is that of a pass that expands one node."""
        known = settings_of(make)
        found: dict[str, Shown] = {"verify_ms": self.verify_ms, "draft_ms": self.draft_ms}
        if known["draft_ms"] is float:
            found["draft_ms"] = self.draft_ms[0][1]
        return {**found, **{name: getattr(self, name) for name in _OPTIONAL if name in known}}


def takes_costs(make: Any) -> bool:
    """Whether a policy chooses its trees by a cost curve."""
    return set(_PARTS) <= settings_of(make).keys()


def read_costs(path: Path) -> EngineCosts:
    """The curve of a JSON file as `benchmarks.cost_curve --out` writes it.

    Where it was measured `in_cycle`, passes cost what they do inside decoding loops, and the host's share of a cycle, a
    node or a level goes to the pass that it belongs to. Where chains in one call were weighed against plain steps,
    both are priced as of that loop: drafts between them cost plain steps time as well. Else passes cost what they
    do when repeated alone, and `overhead_ms`, where there is one, is added to every target pass. Raises ValueError,
    naming the file and what is wrong with it, where there is none or it is something else.
    """
    try:
        held = json.loads(path.read_text(encoding="utf-8"))
        within = held.get(_WITHIN)
        overhead = 0.0 if within else float(held.get("overhead_ms", 0.0))
        found = _within(within) if within else EngineCosts(_curve(held["verify_ms"]), _curve(held["draft_ms"]))
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise ValueError(
            f"{path}: expected JSON with verify_ms and draft_ms, each [[nodes, ms], ...] ({error!r}); write it with "
            "`python -m benchmarks.cost_curve --out`"
        ) from error
    if not 0 <= overhead < inf:
        raise ValueError(f"{path}: overhead_ms must be a time of at least 0, got {overhead}")
    if found.plain_ms is not None and not 0 < found.plain_ms < inf:
        raise ValueError(f"{path}: a plain step must take a positive time, got {found.plain_ms}")
    for part, unit in (("verify_ms", "node"), ("draft_ms", "node"), ("chain_ms", "level")):
        curve = getattr(found, part)
        if curve is None:
            continue
        sizes = [size for size, _ in curve]
        if not sizes or sizes[0] != 1 or sizes != sorted(set(sizes)) or not all(0 < cost < inf for _, cost in curve):
            raise ValueError(f"{path}: {part} must name rising sizes from 1 {unit} on with positive times, got {curve}")
    return found._replace(verify_ms=tuple((nodes, cost + overhead) for nodes, cost in found.verify_ms))


def _within(part: Mapping[str, Any]) -> EngineCosts:
    priced = _host(part, "priced")
    verify = ((nodes, ms + priced["cycle"] + priced["node"] * nodes) for nodes, ms in _curve(part["target_ms"]))
    draft = ((nodes, ms + priced["level"]) for nodes, ms in _curve(part["draft_ms"]))
    if not part["chain_ms"] or "weighed" not in part["host_ms"]:
        plain_ms = float(part["plain"]["target_ms"]) + float(part["plain"]["host_ms"])
        return EngineCosts(tuple(verify), tuple(draft), None, plain_ms)
    weighed = _host(part, "weighed")
    plain_ms = _curve(part["target_ms"])[0][1] + weighed["cycle"] + weighed["node"]
    return EngineCosts(tuple(verify), tuple(draft), _chains(part, priced, weighed), plain_ms)


def _chains(part: Mapping[str, Any], priced: Mapping[str, float], host: Mapping[str, float]) -> Curve:
    """ms of a call, and what such a cycle takes the `host` beyond what is reckoned with the target pass."""
    more = {name: host[name] - priced[name] for name in ("cycle", "node")}
    return tuple(
        (levels, ms + host["level"] * levels + max(0.0, more["cycle"] + more["node"] * (levels + 1)))
        for levels, ms in _curve(part["chain_ms"])
    )


def _host(part: Mapping[str, Any], family: str) -> Mapping[str, float]:
    """ms of the host by what it is for; see `benchmarks.in_cycle`."""
    found = {name: float(ms) for name, ms in part["host_ms"][family].items()}
    if not all(0 <= ms < inf for ms in found.values()):
        raise ValueError(f"times of the host must be at least 0, got {found}")
    return found


def _curve(pairs: Any) -> Curve:
    return tuple((int(nodes), float(cost)) for nodes, cost in pairs)


def costs_beside(folder: Path, side: int | None = None) -> EngineCosts | None:
    """The curve measured for the models of `folder` (at `side` px), from costs.json or costs128.json; None without."""
    path = folder / f"costs{'' if side is None else side}.json"
    return read_costs(path) if path.exists() else None

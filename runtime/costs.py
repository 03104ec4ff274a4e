"""What an engine's passes cost, as measured: the settings of the tree policies that choose by cost."""

from __future__ import annotations

import json
from collections.abc import Mapping
from math import inf
from pathlib import Path
from typing import Any, Final, NamedTuple

from runtime.settings import Curve, Shown, settings_of

SETTING: Final = "costs"
"""The name by which a user points such a policy to a file."""
_PARTS: Final = ("verify_ms", "draft_ms")
_WITHIN: Final = "in_cycle"


class EngineCosts(NamedTuple):
    """(nodes, ms) pairs, nodes rising from 1: of a target pass by its nodes, of a drafter pass by those it expands."""

    verify_ms: Curve
    draft_ms: Curve

    def settings_for(self, make: Any) -> Mapping[str, Shown]:
        """The policy's settings. Where `draft_ms` is one number, it is that of a pass that expands one node."""
        kind = settings_of(make)["draft_ms"]
        return {"verify_ms": self.verify_ms, "draft_ms": self.draft_ms[0][1] if kind is float else self.draft_ms}


def takes_costs(make: Any) -> bool:
    """Whether a policy chooses its trees by a cost curve."""
    return set(_PARTS) <= settings_of(make).keys()


def read_costs(path: Path) -> EngineCosts:
    """The curve of a JSON file as `benchmarks.cost_curve --out` writes it.

    Where it was measured `in_cycle`, passes cost what they do inside decoding loops, and the host's share of a cycle, a
    node or a level goes to the pass that it belongs to. Else they cost what they do when repeated alone, and
    `overhead_ms`, where there is one, is added to every target pass. Raises ValueError, naming the file and what is
    wrong with it, where there is none or it is something else.
    """
    try:
        held = json.loads(path.read_text(encoding="utf-8"))
        within = held.get(_WITHIN)
        overhead = 0.0 if within else float(held.get("overhead_ms", 0.0))
        verify, draft = _within(within) if within else (_curve(held[part]) for part in _PARTS)
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise ValueError(
            f"{path}: expected JSON with verify_ms and draft_ms, each [[nodes, ms], ...] ({error!r}); write it with "
            "`python -m benchmarks.cost_curve --out`"
        ) from error
    if not 0 <= overhead < inf:
        raise ValueError(f"{path}: overhead_ms must be a time of at least 0, got {overhead}")
    for part, curve in zip(_PARTS, (verify, draft), strict=True):
        sizes = [nodes for nodes, _ in curve]
        if not sizes or sizes[0] != 1 or sizes != sorted(set(sizes)) or not all(0 < cost < inf for _, cost in curve):
            raise ValueError(f"{path}: {part} must name rising sizes from 1 node on with positive times, got {curve}")
    return EngineCosts(tuple((nodes, cost + overhead) for nodes, cost in verify), draft)


def _within(part: Mapping[str, Any]) -> tuple[Curve, Curve]:
    host = {name: float(ms) for name, ms in part["host_ms"]["priced"].items()}
    if not all(0 <= ms < inf for ms in host.values()):
        raise ValueError(f"times of the host must be at least 0, got {host}")
    verify = ((nodes, ms + host["cycle"] + host["node"] * nodes) for nodes, ms in _curve(part["target_ms"]))
    return tuple(verify), tuple((nodes, ms + host["level"]) for nodes, ms in _curve(part["draft_ms"]))


def _curve(pairs: Any) -> Curve:
    return tuple((int(nodes), float(cost)) for nodes, cost in pairs)


def costs_beside(folder: Path, side: int | None = None) -> EngineCosts | None:
    """The curve measured for the models of `folder` (at `side` px), from costs.json or costs128.json; None without."""
    path = folder / f"costs{'' if side is None else side}.json"
    return read_costs(path) if path.exists() else None

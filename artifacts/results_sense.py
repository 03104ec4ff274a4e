"""Checks of results beyond the schema, such as reversed intervals, and figures of methods without a row."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import pairwise
from typing import Any, Final

_LOW: Final = "low"
_HIGH: Final = "high"


def contradictions(results: Mapping[str, Any]) -> list[str]:
    """Find contradictions in results that fit the schema.

    Args:
        results: Results of any kind; merged results are checked run by run.

    Returns:
        Messages with their places; empty if the results are consistent.
    """
    messages = list(_turned(results, ""))
    runs = [results] if results.get("kind") != "merged" else [run["results"] for run in results["runs"]]
    for run in runs:
        if run.get("kind") in ("compare", "sweep", "evaluate"):
            messages += _methods(run)
            messages += _maps(run)
            messages += _curve(run)
            messages += _passes(run)
    return messages


def _turned(value: Any, at: str) -> Iterator[str]:
    """Intervals whose low end is above the high end: NAME_low and NAME_high, or low and high."""
    if isinstance(value, list):
        for turn, one in enumerate(value):
            if isinstance(one, dict | list):
                yield from _turned(one, f"{at}[{turn}]")
        return
    for name, item in value.items() if isinstance(value, dict) else ():
        if isinstance(item, dict | list):
            yield from _turned(item, f"{at}.{name}".lstrip("."))
        elif name == _LOW or name.endswith(f"_{_LOW}"):
            high = value.get(name.removesuffix(_LOW) + _HIGH)
            if _is_number(item) and _is_number(high) and item > high:
                yield f"{at or 'the file'}: {name}: expected an interval, got {item} to {high}"


def _methods(run: Mapping[str, Any]) -> Iterator[str]:
    names = [row["method"] for row in run["rows"]]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        yield f"rows: '{twice[0]}' has two rows"
    settings = run["settings"].get("methods")
    unknown = [] if settings is None else [name for name in names if name not in settings]
    if unknown:
        yield f"rows: '{unknown[0]}' is not among the methods of the settings, {', '.join(settings)}"


def _maps(run: Mapping[str, Any]) -> Iterator[str]:
    names, grid = {row["method"] for row in run["rows"]}, run["model"].get("grid")
    for name, cells in run.get("acceptance_per_cell", {}).items():
        at = f"acceptance_per_cell.{name}"
        if name not in names:
            yield f"{at}: there is no row of this method"
        widths = sorted({len(line) for line in cells})
        if len(widths) > 1:
            yield f"{at}: expected rows of one length, got {widths[0]} and {widths[-1]} cells"
        elif grid is not None and [len(cells), widths[0]] != grid:
            yield f"{at}: expected {grid[0]} x {grid[1]} cells, as the model's grid has, got {len(cells)} x {widths[0]}"


def _passes(run: Mapping[str, Any]) -> Iterator[str]:
    """Rows with too few target passes to draw the grid, and rows of a sweep without `variant_of`."""
    grid = run["model"].get("grid")
    for row in run["rows"]:
        passes, tokens = row.get("target_nfe"), row.get("tokens_per_cycle")
        # A pass draws tokens_per_cycle on average; half of the grid allows for cycles without a pass.
        if grid and _is_number(passes) and _is_number(tokens) and passes * max(tokens, 1.0) < grid[0] * grid[1] / 2:
            yield (
                f"rows: '{row['method']}': {passes:g} target passes of {tokens:g} tokens do not draw "
                f"{grid[0] * grid[1]} cells"
            )
        if run["kind"] == "sweep" and "variant_of" not in row:
            yield f"rows: '{row['method']}': expected variant_of in a row of a sweep, got none"


def _curve(run: Mapping[str, Any]) -> Iterator[str]:
    curve = run.get("cost_curve")
    if curve is not None and not {"fingerprint", "verify_ms"} <= curve.keys():
        yield f"cost_curve: expected fingerprint and verify_ms, got {sorted(curve) or 'nothing'}"
        return
    pairs = (curve or {}).get("verify_ms", [])
    sizes = [size for size, _ in pairs]
    if any(type(size) is not int for size in sizes) or any(low >= high for low, high in pairwise(sizes)):
        yield f"cost_curve.verify_ms: expected whole numbers of nodes that rise, got {sizes[:8]}"


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)

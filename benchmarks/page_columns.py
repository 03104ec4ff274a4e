"""Columns of the tables on the pages of docs/results/: headings, and how a cell is written from a row of figures."""

from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

from underpaint.runtime.protocol.tables import interval

Row = Mapping[str, Any]
Column = tuple[str, Callable[[Row], str]]
Rows = Callable[[Row], Iterable[Row]]


def all_rows(result: Row) -> Iterable[Row]:
    """The rows of a record."""
    rows: list[Row] = result["rows"]
    return rows


class Section(NamedTuple):
    """A table of one result file on one page."""

    page: str
    heading: str
    file: str
    columns: tuple[Column, ...]
    words: str = ""
    rows: Rows = all_rows


def number(value: float | None, form: str = ".2f") -> str:
    """A figure, or nothing where there is none."""
    return "" if value is None else format(value, form)


def percent(value: float | None, digits: int = 0) -> str:
    """A share in percent."""
    return "" if value is None else f"{100 * value:.{digits}f} %"


def plain(name: str, form: str = ".2f") -> Callable[[Row], str]:
    """The column of one figure."""
    return lambda row: number(row.get(name), form)


def word(name: str) -> Callable[[Row], str]:
    """The column of one word."""
    return lambda row: str(row[name])


SPEED: tuple[Column, ...] = (
    ("method", word("method")),
    ("lossless", lambda row: "yes" if row["lossless"] else "no"),
    ("speed-up (95 %)", lambda row: interval(row, "speedup")),
    ("target NFE", plain("target_nfe", ".0f")),
    ("drafter NFE", plain("drafter_nfe", ".0f")),
    ("tokens per cycle", plain("tokens_per_cycle")),
    ("mean depth", plain("mean_depth")),
    ("host share", lambda row: percent(row["overhead_share"])),
    ("bias of a token", lambda row: interval(row, "token_bias", ".3f")),
    ("prompt accuracy", plain("prompt_accuracy", ".3f")),
    ("less AR's (95 %)", lambda row: interval(row, "accuracy_over_ar", "+.3f")),
    ("same as AR", lambda row: percent(row["identical_share"], 1)),
)

README_COLUMNS: tuple[Column, ...] = (
    ("method", lambda row: f"`{row['method']}`"),
    ("lossless", lambda row: "yes" if row["lossless"] else "no"),
    ("speed-up (95 %)", lambda row: interval(row, "speedup")),
    ("target passes", plain("target_nfe", ".0f")),
    ("drafter passes", plain("drafter_nfe", ".0f")),
    ("prompt accuracy", plain("prompt_accuracy", ".2f")),
)

PROTOCOL: tuple[Column, ...] = (
    ("method", lambda row: f"`{row['method']}`"),
    ("promise", word("promise")),
    ("equal to AR at temperature 0", lambda row: row["same_as_ar"] or ""),
    ("speed-up (95 %)", lambda row: interval(row, "speedup")),
    ("target passes", plain("target_nfe", ".0f")),
    ("tokens per pass", plain("tokens_per_pass")),
    ("quality minus AR's, nats (95 %)", lambda row: interval(row, "quality_over_ar", "+.3f")),
)
"""Of a record of `underpaint protocol`; its rows are those of `runtime.protocol.tables.summary`."""

PAIRED: tuple[Column, ...] = (
    ("compared with", word("method")),
    ("lossless", lambda row: "yes" if row["lossless"] else "no"),
    ("pictures", plain("pictures", ".0f")),
    ("times faster (95 %)", lambda row: interval(row, "faster", ".3f")),
    ("levels deeper (95 %)", lambda row: interval(row, "deeper", "+.2f")),
)

TIES: tuple[Column, ...] = (
    ("method", word("method")),
    ("pictures", plain("pictures", ".0f")),
    ("differ from plain decoding", plain("parted", ".0f")),
    ("of these, without a tie", plain("beyond_ties", ".0f")),
    ("widest gap, nats", plain("largest_gap", ".1e")),
)


def _speed_of(name: str) -> Callable[[Row], str]:
    return lambda row: f"{row['methods'][name]['speedup'][0]:.2f}" if name in row["methods"] else ""


def _over(name: str) -> Callable[[Row], str]:
    def cell(row: Row) -> str:
        mean, low, high = row["roofline_over"][name]
        return f"{mean:.2f}x ({low:.2f} to {high:.2f})"

    return cell


_PARTS = ("jacobi-lookup", "points only", "no windows", "with replacement", "no siblings", "roofline")
STUDY: tuple[Column, ...] = (
    ("synthetic model", word("model")),
    ("machine", word("machine")),
    *((name, _speed_of(name)) for name in ("chain", "static tree", "eagle2", "adt", "adt, equal nodes")),
    *((name, _speed_of(name)) for name in _PARTS),
    ("roofline over adt (95 %)", _over("adt")),
    ("drawn siblings, tuned", _speed_of("sampled")),
    ("roofline over those (95 %)", _over("sampled")),
)

_SIMULATED_ON = [(machine, model) for machine in ("a100", "h200") for model in ("field", "flat", "patchy")]


def simulated_by_method(result: Row) -> Iterable[Row]:
    """One row for each method and preset, with its speed-up on every machine and synthetic model."""
    found: dict[tuple[str, str], dict[str, Any]] = {}
    for row in result["rows"]:
        one = found.setdefault((row["method"], row["preset"]), {"method": row["method"], "preset": row["preset"]})
        one[f"{row['machine'].partition('/')[0]}, {row['model']}"] = row["speedup"]
    return found.values()


SIMULATED: tuple[Column, ...] = (
    ("method", lambda row: f"`{row['method']}`"),
    ("settings", word("preset")),
    *((f"{machine.upper()}, {model}", plain(f"{machine}, {model}")) for machine, model in _SIMULATED_ON),
)


def scaled(result: Row) -> Iterable[Row]:
    """The rows of both versions, and the large simulation of the new one alone."""
    large = result["large"]
    what = f"whole: a tree of 8 nodes in lockstep, at most {large['peak_mib']:.0f} MiB a process"
    return [*result["rows"], {"what": what, "images": large["images"], "new_s": large["seconds"]}]


SCALE: tuple[Column, ...] = (
    ("what", word("what")),
    ("images", lambda row: f"{row['images']:,}"),
    ("before, s", plain("old_s")),
    ("now, s", plain("new_s")),
    ("times as fast", plain("times", ".1f")),
)


def _mebibytes(name: str) -> Callable[[Row], str]:
    """Bytes in MiB; what could not be built is said."""
    return lambda row: "not built" if row[name] is None else f"{row[name] / 2**20:,.1f}"


PLANS: tuple[Column, ...] = (
    ("decoder", word("decoder")),
    ("engines for", word("what")),
    ("weights, MiB", _mebibytes("weight_bytes")),
    ("before, MiB", _mebibytes("old_bytes")),
    ("now, MiB", _mebibytes("new_bytes")),
    ("now / weights", lambda row: f"{row['new_bytes'] / row['weight_bytes']:.2f}"),
    ("before, s", plain("old_s", ".0f")),
    ("now, s", plain("new_s", ".0f")),
)


def figures(*names: str, part: str | None = None) -> Rows:
    """A row for each figure of a record, or of one part of it."""

    def rows(result: Row) -> list[dict[str, Any]]:
        held = result if part is None else result[part]
        return [{"figure": name, "value": held[name]} for name in names]

    return rows


FIGURES: tuple[Column, ...] = (
    ("figure", word("figure")),
    ("value", lambda row: f"{row['value']:,.4g}" if isinstance(row["value"], float) else f"{row['value']:,}"),
)

CERTIFIED: tuple[Column, ...] = (
    ("wrong ones judged", plain("wrong", ".0f")),
    ("missed", lambda row: str(len(row["missed"]))),
    ("slowest, s", plain("slowest_s", ".0f")),
    ("runs of right ones", plain("right", ".0f")),
    ("false alarms", lambda row: str(len(row["false_alarms"]))),
)

PROGRAM: tuple[Column, ...] = (
    ("model", word("model")),
    ("method", word("method")),
    ("nodes", word("nodes")),
    ("outside the models", word("outside_nodes")),
    ("waits", word("waits")),
    ("MB a cycle", lambda row: f"{row['bytes'] / 1e6:,.0f}"),
    ("MB outside", lambda row: f"{row['outside_bytes'] / 1e6:,.1f}"),
    ("H200, ms", plain("h200_ms", ".3f")),
    ("of which outside", plain("h200_outside_ms", ".3f")),
    ("by launches, bytes, slots", lambda row: ", ".join(f"{one:.3f}" for one in row["outside_by"].values())),
    ("longest kernel", lambda row: f"{row['longest'].removesuffix('_kernel')} {row['longest_ms']:.3f}"),
    ("A100, ms", plain("a100_ms", ".3f")),
    ("of which outside", plain("a100_outside_ms", ".3f")),
)


PREMISES: tuple[Column, ...] = (
    ("figure", word("figure")),
    ("value", plain("value", ".3f")),
    ("95 %", lambda row: "" if row["low"] is None else f"{row['low']:.3f} to {row['high']:.3f}"),
    ("published", lambda row: row["published"] or ""),
)

PREDICTED: tuple[Column, ...] = (
    ("method", word("method")),
    ("tokens per cycle, measured", plain("measured_tokens_per_cycle", ".3f")),
    ("predicted", lambda row: f"{row['tokens_per_cycle'][0]:.3f}"),
    ("error", lambda row: f"{100 * row['tokens_error']:+.1f} %"),
    ("error expected by chance", lambda row: percent(row["tokens_chance"])),
    ("speed-up, measured", plain("measured_speedup", ".3f")),
    ("predicted", lambda row: f"{row['speedup'][0]:.3f}"),
    ("error", lambda row: f"{100 * row['speedup_error']:+.1f} %"),
)

JUDGED: tuple[Column, ...] = (
    *SPEED[:3],
    ("seconds a picture", plain("seconds_per_image")),
    *SPEED[3:-2],
    ("prompt accuracy minus AR's (95 %)", lambda row: interval(row, "accuracy_over_ar", "+.3f")),
    SPEED[-1],
    ("judge's log-probability minus AR's", lambda row: interval(row, "attribute_log_probability_over_ar", "+.2f")),
    ("target's log-likelihood minus AR's", lambda row: interval(row, "log_likelihood_over_ar", "+.3f")),
    ("AUC against AR's", lambda row: interval(row, "auc")),
)
_TIMES = ("speed-up (95 %)", "seconds a picture", "host share")
UNTIMED: tuple[Column, ...] = tuple(column for column in JUDGED if column[0] not in _TIMES)
"""Of a record whose times say nothing."""


PASSES: tuple[Column, ...] = (("nodes", word("nodes")), ("plain passes", plain("times")))


def _equal(row: Row) -> str:
    return f"{row['equal']} of {row['methods']}"


def milliseconds(name: str) -> Callable[[Row], str]:
    """A column of seconds, shown in milliseconds."""
    return lambda row: f"{1e3 * row[name]:.0f}"


SERVED: tuple[Column, ...] = (
    ("clients", plain("clients", "d")),
    ("slots", plain("slots", "d")),
    ("pictures", plain("pictures", "d")),
    ("pictures a second", plain("pictures_a_second")),
    ("p50, s", plain("p50_s")),
    ("p99, s", plain("p99_s")),
)
"""Throughput and latency of a server by clients and slots; no slots: without a server."""
WAITING: tuple[Column, ...] = (
    ("when", word("what")),
    ("p50, s", plain("p50_s")),
    ("longest, s", plain("longest_s")),
)
"""How long one client of a server waits while there are others."""
LIVE_DRAFTER: tuple[Column, ...] = (
    ("method", word("method")),
    ("settings", lambda row: ", ".join(row["settings"])),
    ("pictures", plain("pictures", "d")),
    ("target passes", plain("passes", ".0f")),
    ("drafter passes", plain("drafter_passes", ".0f")),
    ("seconds", plain("seconds")),
    ("speed-up (95 %)", lambda row: interval(row, "speedup")),
)
"""Methods with a drafter of a live model that was trained for it."""
LIVE_BATCHES: tuple[Column, ...] = (
    ("method", word("method")),
    ("pictures at once", plain("batch", "d")),
    ("compiled", lambda row: "yes" if row["compiled"] else "no"),
    ("target passes of a picture", plain("passes", ".0f")),
    ("processor's seconds", plain("processor", ".3f")),
    ("clock's seconds", plain("clock", ".3f")),
    ("speed-up (95 %)", lambda row: interval(row, "speedup")),
)
"""Batches and compiled passes of a live model."""
LIVE: tuple[Column, ...] = (
    ("family", word("family")),
    ("cells", plain("cells", "d")),
    ("equal", _equal),
    ("`generate`, ms", milliseconds("generate_seconds")),
    ("ar, ms", milliseconds("ar_seconds")),
    ("jacobi-lookup passes", plain("jacobi_lookup_passes", "d")),
    ("jacobi-lookup, ms", milliseconds("jacobi_lookup_seconds")),
    ("eagle2 passes", plain("eagle2_passes", "d")),
    ("eagle2, ms", milliseconds("eagle2_seconds")),
    ("mulo passes, exact", plain("mulo_passes", "d")),
    ("layer, MB", lambda row: f"{row['layer_bytes'] / 1e6:.0f}"),
    ("cache of a position, KB", lambda row: f"{row['cache_bytes'] / 1e3:.0f}"),
    ("layer, 1 position, ms", plain("layer_ms_1", ".0f")),
    ("layer, 16 positions, ms", plain("layer_ms_16", ".0f")),
)
"""One family of live models."""


RECENT: tuple[Column, ...] = (
    ("distributions", word("world")),
    ("draft", word("draft")),
    ("rule", lambda row: f"`{row['rule']}`" + "".join(f", {name} {value}" for name, value in row["settings"].items())),
    ("tokens kept", plain("kept", ".3f")),
    ("most of a lossless rule", plain("best", ".3f")),
    ("share", lambda row: percent(row["kept"] / row["best"])),
    ("total variation", lambda row: number(row["total_variation"], ".3f") if row["total_variation"] else "0"),
)

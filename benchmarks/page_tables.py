"""Which tables the pages of docs/results/ hold: for each result file, its rows and its columns."""

from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

Row = Mapping[str, Any]
Column = tuple[str, Callable[[Row], str]]


class Section(NamedTuple):
    """A table of one result file on one page."""

    page: str
    heading: str
    file: str
    columns: tuple[Column, ...]
    words: str = ""
    rows: Callable[[Row], Iterable[Row]] = lambda result: result["rows"]


def number(value: float | None, form: str = ".2f") -> str:
    """A figure, or nothing where there is none."""
    return "" if value is None else format(value, form)


def percent(value: float | None) -> str:
    """A share in percent."""
    return "" if value is None else f"{100 * value:.0f} %"


def interval(row: Row, name: str, form: str = ".2f") -> str:
    """A figure with its 95 % interval."""
    if row.get(f"{name}_low") is None:
        return number(row.get(name), form)
    return f"{row[name]:{form}} ({row[f'{name}_low']:{form}} to {row[f'{name}_high']:{form}})"


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
    ("prompt accuracy", plain("prompt_accuracy", ".3f")),
    ("less AR's (95 %)", lambda row: interval(row, "accuracy_over_ar", "+.3f")),
    ("same as AR", lambda row: percent(row["identical_share"])),
)

SPREAD: tuple[Column, ...] = (
    ("setting", word("variant")),
    ("speed-up (95 %)", lambda row: interval(row, "speedup")),
    ("tokens per cycle", plain("tokens_per_cycle")),
    ("mean depth", plain("mean_depth")),
    ("prompt accuracy", plain("prompt_accuracy", ".3f")),
    ("less AR's (95 %)", lambda row: interval(row, "accuracy_over_ar", "+.3f")),
)

PREDICTED: tuple[Column, ...] = (
    ("method", word("method")),
    ("tokens per cycle, measured", plain("measured_tokens_per_cycle", ".3f")),
    ("predicted", lambda row: f"{row['tokens_per_cycle'][0]:.3f}"),
    ("error", lambda row: f"{100 * row['tokens_error']:+.1f} %"),
    ("of it by chance of prompts", lambda row: percent(row["tokens_chance"])),
    ("speed-up, measured", plain("measured_speedup", ".3f")),
    ("predicted", lambda row: f"{row['speedup'][0]:.3f}"),
    ("error", lambda row: f"{100 * row['speedup_error']:+.1f} %"),
)


def _speed_of(name: str) -> Callable[[Row], str]:
    return lambda row: f"{row['methods'][name]['speedup'][0]:.2f}" if name in row["methods"] else ""


def _over(name: str) -> Callable[[Row], str]:
    def cell(row: Row) -> str:
        mean, low, high = row["roofline_over"][name]
        return f"{mean:.2f}x ({low:.2f} to {high:.2f})"

    return cell


STUDY: tuple[Column, ...] = (
    ("synthetic model", word("model")),
    ("machine", word("machine")),
    *((name, _speed_of(name)) for name in ("chain", "static tree", "eagle2", "adt", "adt, equal nodes", "roofline")),
    ("roofline over adt (95 %)", _over("adt")),
    ("drawn siblings kept", _speed_of("sampled")),
)

CHAINS: tuple[Column, ...] = (
    ("traces", word("place")),
    *((name, _speed_of(name)) for name in ("chain", "adt", "without calls", "roofline")),
    ("roofline over adt (95 %)", _over("adt")),
)

VERIFIED: tuple[Column, ...] = (
    ("policy", lambda row: f"{row['policy']} {row['settings']}" if row["settings"] else str(row["policy"])),
    ("token by token", lambda row: f"{row['rules'][0]}: {row['tokens_per_cycle'][0]:.2f}"),
    ("as a whole", lambda row: f"{row['rules'][1]}: {row['tokens_per_cycle'][1]:.2f}"),
    (
        "gain (95 %)",
        lambda row: f"{100 * row['gain']:.1f} % ({100 * row['gain_low']:.1f} to {100 * row['gain_high']:.1f})",
    ),
)

PAIRS: tuple[Column, ...] = (
    ("prompt", word("prompt")),
    ("method", word("method")),
    ("z-scores", lambda row: "; ".join(f"{name}: {value:+.1f}" for name, value in row["z"].items())),
    ("impossible tokens", word("impossible")),
)


def _with_half(name: str) -> Callable[[Row], str]:
    """A mean and half its 95 % interval."""

    def cell(row: Row) -> str:
        found = row.get(name)
        return "" if found is None else f"{found['mean']:.2f} ± {found['half']:.2f}"

    return cell


def _figures(*names: str) -> Callable[[Row], Iterable[Row]]:
    return lambda result: [{"figure": name, "value": result[name]} for name in names]


FIGURES: tuple[Column, ...] = (
    ("figure", word("figure")),
    ("value", lambda row: f"{row['value']:,.4g}" if isinstance(row["value"], float) else f"{row['value']:,}"),
)

BUDGET: tuple[Column, ...] = (
    ("rival, residual", word("rival")),
    ("siblings", lambda row: f"{row['siblings']}, {row['drawn']}"),
    ("mean total variation", plain("mean_bias", ".3f")),
    ("more kept, mean", plain("mean_gain", "+.3f")),
    ("least", plain("least_gain", "+.3f")),
    ("largest", plain("largest_gain", "+.3f")),
    ("cases with more", lambda row: percent(row["keeps_more"])),
    ("rival beyond its delta", lambda row: number(row["rival_beyond_its_delta"], ".0f")),
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
    ("A100, ms", plain("a100_ms", ".3f")),
    ("of which outside", plain("a100_outside_ms", ".3f")),
)

SECTIONS: tuple[Section, ...] = (
    Section("comparison", "All tree methods, temperature 0", "compare-128-t0.json", SPEED),
    Section("comparison", "All tree methods, temperature 1", "compare-128-t1.json", SPEED),
    Section("comparison", "ADT-Tree with LANTERN on 1,000 prompts, temperature 0", "accuracy-128-t0.json", SPEED),
    Section("comparison", "ADT-Tree with LANTERN on 1,000 prompts, temperature 1", "accuracy-128-t1.json", SPEED),
    Section("comparison", "`roofline` beside ADT-Tree, temperature 0", "roofline-128-t0.json", SPEED),
    Section("comparison", "`roofline` beside ADT-Tree, temperature 1", "roofline-128-t1.json", SPEED),
    Section("mulo-sd", "MuLo-SD at its best measured settings", "mulo-compare-t1-window3.json", SPEED),
    Section("mulo-sd", "MuLo-SD, islands at draft window 2", "mulo-compare-t1.json", SPEED),
    Section("mulo-sd", "What each part adds", "mulo-ablation.json", SPEED),
    Section(
        "mulo-sd", "Speed against quality", "mulo-frontier.json", SPEED, "![Speed against quality](mulo-frontier.png)"
    ),
    Section("roofline", "Synthetic models on three machines", "roofline-study.json", STUDY),
    Section("roofline", "Chains in one call, on traces of the shipped models", "chain-study-traces.json", CHAINS),
    Section("roofline", "Chains in one call, on synthetic models", "chain-study-models.json", CHAINS),
    Section(
        "simulator", "Tree methods", "predict-128-t1.json", PREDICTED, "A trace of other prompts predicts a comparison."
    ),
    Section("simulator", "MuLo-SD and ZipAR", "predict-mulo-t1.json", PREDICTED),
    Section(
        "simulator",
        "Lockstep against the loop",
        "simulate.json",
        (
            ("policy", word("policy")),
            ("rule", word("rule")),
            ("lockstep, ms an image", plain("lockstep_ms", ".3f")),
            ("loop, ms an image", plain("loop_ms", ".2f")),
            ("times faster", plain("times_faster", ".0f")),
        ),
    ),
    Section(
        "relaxed",
        "`neighbour_budget` against the best mixture of a rival's settings at equal total variation",
        "relaxed-budget.json",
        BUDGET,
        "Exact, by enumeration, so on any machine. *More kept*: the probability that one of the siblings is kept, less "
        "the rival's.",
    ),
    Section("exactness", "First tokens and pairs, 600 draws", "pair-statistics-128.json", PAIRS),
    Section("exactness", "First tokens and pairs, 2,400 draws", "pair-statistics-128-long.json", PAIRS),
    Section("exactness", "Block and traversal verification", "verification-128.json", VERIFIED),
    Section(
        "exactness",
        "Verifiers judged by `underpaint certify`",
        "certify.json",
        CERTIFIED,
        "Wrong ones are the gallery's, on every kind of trees. Right ones are ours and public samplers written anew.",
        lambda result: [result],
    ),
    Section(
        "exactness",
        "Wrong verifiers, one by one",
        "certify.json",
        (
            ("verifier", word("verifier")),
            ("siblings", word("drawn")),
            ("seconds", plain("seconds", ".1f")),
            ("recognised as", lambda row: ", ".join(row["looks_like"])),
        ),
    ),
    Section("settings", "ADT-Tree with LANTERN, one setting at a time", "adt-settings-t1.json", SPREAD),
    Section(
        "settings",
        "Samplers between 64 and 128 px",
        "samplers.json",
        (
            ("sampler", word("kind")),
            ("PSNR up, dB", _with_half("up_psnr_scene")),
            ("PSNR down, dB", _with_half("down_psnr_scene")),
        ),
    ),
    Section(
        "costs",
        "A verdict on a tree",
        "decide.json",
        FIGURES,
        rows=_figures("nodes", "vocab_size", "verdict_ms", "speedup", "speedup_arrays", "base_us", "visited_us"),
    ),
    Section(
        "costs",
        "TreeBuilder a tree on the host",
        "grow.json",
        FIGURES,
        rows=_figures("nodes", "vocab_size", "grow_us", "direct_sorted_us", "direct_partitioned_us"),
    ),
    Section(
        "costs",
        "LlamaGen-B at full size",
        "llamagen-b.json",
        FIGURES,
        rows=_figures(
            "parameters", "export_seconds", "peak_memory_bytes", "picture_seconds", "reading_ms", "token_over_reading"
        ),
    ),
    Section(
        "device",
        "Cycles on the device, predicted",
        "device-predictions.json",
        PROGRAM,
        "A prediction, written before a GPU was seen: 2 microseconds for each node of a cycle's graph, and its bytes "
        "at nominal bandwidth. Compute and what kernels waste are left out, so a GPU is slower. Images: 1; ADT-Tree's "
        "envelope has eight levels, whether an image uses them or not.",
    ),
    Section(
        "costs",
        "A pass after a pause",
        "pauses.json",
        (("pause, ms", lambda row: str(row["pause"])), ("passes of 1, 2, ... positions, ms", word("passes"))),
        rows=lambda result: [
            {"pause": pause, "passes": ", ".join(f"{count}: {ms:.3f}" for count, ms in found.items())}
            for pause, found in result["passes_ms"]
        ],
    ),
)

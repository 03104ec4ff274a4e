"""Columns of the tables on the pages of docs/results/: headings, and the cells below them."""

from collections.abc import Callable, Iterable
from typing import Any

from benchmarks.page_cells import Column, Row, interval, number, percent, plain, word

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

WINDOWS: tuple[Column, ...] = (
    ("method and settings", word("method")),
    ("speed-up (95 %)", lambda row: interval(row, "speedup")),
    ("target NFE", plain("target_nfe", ".0f")),
    ("tokens per cycle", plain("tokens_per_cycle")),
    ("host share", lambda row: percent(row["overhead_share"])),
    ("prompt accuracy", plain("prompt_accuracy", ".3f")),
)

JUDGED_WINDOWS: tuple[Column, ...] = (
    *WINDOWS,
    (
        "judge's log-probability, less AR's (95 %)",
        lambda row: interval(row, "attribute_log_probability_over_ar", "+.2f"),
    ),
)

RANKS: tuple[Column, ...] = (
    ("temperature", plain("temperature", "g")),
    ("draws by", word("draws_by")),
    ("cycles", plain("cycles", ".0f")),
    ("kept, by rank", lambda row: ", ".join(f"{kept:.3f}" for kept in row["acceptance"])),
)


def dominators(measure: str) -> Callable[[Row], str]:
    """The column of who is faster and no worse by a measure; those beyond the noise in bold."""

    def cell(row: Row) -> str:
        told = row[f"{measure}_dominated"]
        return ", ".join(f"**{name}**" if name in told["clearly"] else name for name in told["by"]) or "-"

    return cell


FRONTIER: tuple[Column, ...] = (
    ("method", word("method")),
    ("lossless", lambda row: "yes" if row["lossless"] else "no"),
    ("speed-up (95 %)", lambda row: interval(row, "speedup")),
    ("total variation a token (95 %)", lambda row: interval(row, "token_bias", ".3f")),
    ("speed-up bought by 0.1 of it", plain("bought", "+.2f")),
    ("log-likelihood, less AR's (95 %)", lambda row: interval(row, "log_likelihood_over_ar", "+.2f")),
    ("accuracy, less AR's (95 %)", lambda row: interval(row, "accuracy_over_ar", "+.2f")),
    ("dominated, by bias", dominators("token_bias")),
    ("by likelihood", dominators("log_likelihood_over_ar")),
)

SPREAD: tuple[Column, ...] = (
    ("setting", word("variant")),
    ("speed-up (95 %)", lambda row: interval(row, "speedup")),
    ("times as fast as the default (95 %)", lambda row: interval(row, "over_default", ".3f")),
    ("tokens per cycle", plain("tokens_per_cycle")),
    ("mean depth", plain("mean_depth")),
    ("prompt accuracy", plain("prompt_accuracy", ".3f")),
    ("less AR's (95 %)", lambda row: interval(row, "accuracy_over_ar", "+.3f")),
)

MEASURES = {
    "accuracy": "prompt accuracy",
    "attribute_log_probability": "judge's log-probability",
    "log_likelihood": "target's log-likelihood",
    "auc": "AUC of a classifier, less 0.5",
}

DAMAGE: tuple[Column, ...] = (
    ("tokens replaced", lambda row: percent(row["share"]) if row["share"] else "none (control)"),
    ("by their k-th nearest, k", lambda row: str(row["rank"]) if row["share"] else "-"),
    ("measure", lambda row: MEASURES[row["measure"]]),
    ("less the undamaged (95 %)", lambda row: interval(row, "difference", "+.3f")),
    ("sees it", lambda row: "yes" if row["sees"] else "no"),
    ("pictures needed", lambda row: str(row["pictures_needed"] or "-")),
)

PAIRED: tuple[Column, ...] = (
    ("beside", word("method")),
    ("lossless", lambda row: "yes" if row["lossless"] else "no"),
    ("pictures", plain("pictures", ".0f")),
    ("times faster (95 %)", lambda row: interval(row, "faster", ".3f")),
    ("levels deeper (95 %)", lambda row: interval(row, "deeper", "+.2f")),
)

TIES: tuple[Column, ...] = (
    ("method", word("method")),
    ("pictures", plain("pictures", ".0f")),
    ("part from plain decoding", plain("parted", ".0f")),
    ("of them where nothing ties", plain("beyond_ties", ".0f")),
    ("widest gap, nats", plain("largest_gap", ".1e")),
)

DRAWS: tuple[Column, ...] = (
    ("method", word("method")),
    ("prompt accuracy", plain("prompt_accuracy", ".3f")),
    ("less AR's first seed (95 %)", lambda row: interval(row, "over_first_seed", "+.3f")),
    ("less AR's other seeds (95 %)", lambda row: interval(row, "over_other_seeds", "+.3f")),
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


def figures(*names: str) -> Callable[[Row], Iterable[Row]]:
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

DISTURBED: tuple[Column, ...] = (
    ("run", word("run")),
    ("method", word("method")),
    ("pictures", word("images")),
    ("target NFE", plain("target_nfe", ".12g")),
    ("tokens per cycle", plain("tokens_per_cycle", ".16g")),
    ("prompt accuracy", plain("prompt_accuracy", ".12g")),
    ("Fréchet distance", plain("frechet_distance", ".16g")),
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

CONTROLS: tuple[Column, ...] = (
    ("temperature", word("temperature")),
    ("method", word("method")),
    ("`mean_depth`", plain("setting")),
    ("mean depth", plain("mean_depth")),
    ("nodes a cycle", plain("mean_nodes")),
    ("tokens per cycle", plain("tokens_per_cycle")),
    ("target NFE", plain("target_nfe", ".0f")),
    ("drafter NFE", plain("drafter_nfe", ".0f")),
)

HOST_SHARE: tuple[Column, ...] = (
    ("loop", word("loop")),
    ("positions a pass", plain("positions", ".0f")),
    ("target, ms", plain("target_ms", ".1f")),
    ("drafter, ms", plain("drafter_ms", ".1f")),
    ("host, ms", plain("host_ms", ".2f")),
    ("host share", lambda row: f"{100 * row['host_share']:.1f} %"),
)


def _first_flip(row: Row) -> str:
    flip = row["first_flip"]
    return "" if flip is None else f"cell {flip['cell']}, led by {flip['margin']:.2g}"


INVARIANCE: tuple[Column, ...] = (
    ("model", word("model")),
    ("precision", word("precision")),
    ("form", word("form")),
    ("positions", word("count")),
    ("worst row", lambda row: f"{row['row'] + 1} of {row['rows']}"),
    ("largest difference of logits", plain("logits", ".2g")),
    ("of probabilities", plain("probs", ".2g")),
    ("flips of the likeliest", word("flips")),
    ("the first", _first_flip),
)

PREMISES: tuple[Column, ...] = (
    ("figure", word("figure")),
    ("value", plain("value", ".3f")),
    ("95 %", lambda row: "" if row["low"] is None else f"{row['low']:.3f} to {row['high']:.3f}"),
    ("published", lambda row: row["published"] or ""),
)

DUPLICATES: tuple[Column, ...] = (
    ("replaced by", lambda row: f"neighbour {row['rank']}" if row["rank"] else "a random code"),
    ("cosine of the codes", plain("cosine", ".2f")),
    ("PSNR to the scene, dB", plain("psnr", ".1f")),
    ("change of the picture, MSE (95 %)", lambda row: interval(row, "change_mse", ".0f")),
)

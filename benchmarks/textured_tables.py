"""Tables of docs/results/textured.md: the models of TexturedScenes, in the regime that the papers argue from."""

from collections.abc import Callable
from typing import Final

from benchmarks.page_cells import Column, Row, Section, interval, number, plain, word
from benchmarks.page_columns import DAMAGE as DAMAGE_COLUMNS
from benchmarks.page_columns import PAIRED, PREMISES, SPEED, SPREAD
from benchmarks.page_columns import TIES as TIES_COLUMNS

TEXTURED_PAGE: Final = "textured"
TRAINED: Final = "textured-training.json"
PREMISES_OF: Final = {side: f"textured-premises-{side}.json" for side in (64, 128)}
COMPARED: Final = {temperature: f"textured-compare-128-t{temperature}.json" for temperature in (1, 0)}
"""All methods, by temperature, 128 px."""
QUALITY: Final = {temperature: f"textured-quality-128-t{temperature}.json" for temperature in (1, 0)}
"""The methods of the targets, on more prompts, by temperature, 128 px; beside `mulo-islands` row fronts that take as
many passes, at most."""
ISLANDS: Final = "textured-quality-islands-128-t1.json"
"""MuLo-SD with islands on yet more prompts, as tuned, temperature 1, 128 px."""
TWO_BEHIND: Final = "textured-quality-islands-two-128-t1.json"
"""The same where rows of an island lie two cells behind each other in repair, beside row fronts in as many passes."""
MORE: Final = {temperature: f"textured-quality-more-128-t{temperature}.json" for temperature in (1, 0)}
"""The methods of `QUALITY` on other prompts and another processor."""
DAMAGE: Final = "textured-quality-damage.json"
"""Which measure of quality sees known damage, 128 px."""
SMALL: Final = "textured-compare-64-t1.json"
"""Methods at 64 px, beside those of `QUALITY`."""
SETTINGS: Final = "textured-adt-settings-128-t1.json"
"""ADT-Tree with LANTERN, one setting at a time."""
TIES: Final = "textured-ties-128-t0.json"
"""Where lossless methods of `COMPARED` parted from plain decoding, temperature 0."""
PAIRED_BY: Final = {temperature: f"textured-paired-128-t{temperature}.json" for temperature in (1, 0)}
"""Of `benchmarks.paired_speed`, by temperature, 128 px."""
PAPER: Final = {temperature: f"textured-compare-paper-128-t{temperature}.json" for temperature in (1, 0)}
PAPER_PAIRED: Final = {temperature: f"textured-paired-paper-128-t{temperature}.json" for temperature in (1, 0)}
"""`eagle2` beside the others at the papers' settings, by temperature, 128 px."""
CONTROL: Final = "textured-adt-control-128-t1.json"
"""ADT-Tree at the papers' settings beside trees of its mean depth and nodes that never adapt."""
POOLED: Final = "textured-pooled-codes-128-t0.json"
"""ADT-Tree with LANTERN by how many near codes are pooled, temperature 0, on prompts apart."""
FEWER: Final = "textured-pooled-30-128-t0.json"
"""The same with 30 codes in place of 250, on the prompts of `QUALITY`, temperature 0."""
UNBOUNDED: Final = "textured-unbounded-128-t1.json"
"""LANTERN with delta = 1, which bounds no total variation."""
EIGHT_BITS: Final = "textured-eight-bits-128-t1.json"
PAIR_OF_ROWS: Final = "textured-pair-128-t1.json"
"""Guidance by two rows a pass, as in the papers."""
ABLATION: Final = "textured-mulo-ablation.json"
"""What each part of MuLo-SD adds, 128 px."""
FRONTS: Final = "textured-mulo-parts.json"
"""What row fronts add to MuLo-SD, and pictures in place of tokens between the resolutions, 128 px."""
LOSSES: Final = "textured-mulo-losses.json"
"""What the losses of MuLo-SD's samplers add, 128 px."""


def _reached(row: Row) -> str:
    return ", ".join(f"{name} {value:.4g}" for name, value in row["reached"].items())


TRAINING: tuple[Column, ...] = (
    ("model", word("model")),
    ("steps", lambda row: f"{row['steps']:,}" + (f" after {row['steps_before']:,}" if row["steps_before"] else "")),
    ("batch", lambda row: str(row["batch"] or "")),
    ("minutes of training in all", lambda row: f"{row['seconds'] / 60:,.0f}"),
    ("last validation", _reached),
)
"""steps after others: of the model that the weights began from."""

JUDGED: tuple[Column, ...] = (
    *SPEED[:3],
    ("seconds a picture", plain("seconds_per_image")),
    *SPEED[3:],
    ("judge's log-probability, less AR's", lambda row: interval(row, "attribute_log_probability_over_ar", "+.2f")),
    ("target's log-likelihood, less AR's", lambda row: interval(row, "log_likelihood_over_ar", "+.3f")),
    ("told from AR's, AUC", lambda row: interval(row, "auc")),
)
_TIMES: Final = ("speed-up (95 %)", "seconds a picture", "host share")
UNTIMED: Final[tuple[Column, ...]] = tuple(column for column in JUDGED if column[0] not in _TIMES)
"""Of a record whose times say nothing."""
_COMPARED: Final = "Where guidance is not 1, every pass has two rows. Measures of quality are paired with AR's."


def _compared(file: str, heading: str, more: str = "") -> Section:
    return Section(TEXTURED_PAGE, heading, file, JUDGED, f"{_COMPARED} {more}".strip())


def _premises(side: int) -> tuple[Section, ...]:
    words = (
        "After guidance; where it is not 1, a pass has two rows. What each figure is: docs/how-to/check-premises.md."
    )
    passes = "In plain passes, inside decoding cycles, by the nodes of the pass: what verification in parallel costs."
    file = PREMISES_OF[side]
    return (
        Section(TEXTURED_PAGE, f"What the papers take for granted, {side} px", file, PREMISES, words),
        Section(TEXTURED_PAGE, f"What a target pass costs, {side} px", file, PASSES, passes, lambda one: one["passes"]),
    )


def _ms(share: str) -> Callable[[Row], str]:
    """The part of a picture's time that goes to something, in ms."""
    return lambda row: number(1e3 * row["seconds_per_image"] * row[share], ".0f")


SPENT: Final[tuple[Column, ...]] = (
    ("method", word("method")),
    ("ms a picture", lambda row: number(1e3 * row["seconds_per_image"], ".0f")),
    *(
        (heading, _ms(share))
        for heading, share in (
            ("target", "target_share"),
            ("drafter or low target", "drafter_share"),
            ("samplers", "resampler_share"),
            ("host", "overhead_share"),
        )
    ),
    ("target, ms a cycle", plain("target_ms_per_cycle")),
    ("drafter, ms a cycle", plain("drafter_ms_per_cycle")),
)
"""Where a picture's time goes."""
PASSES: Final[tuple[Column, ...]] = (("nodes", word("nodes")), ("plain passes", plain("times")))


TEXTURED_SECTIONS: Final[tuple[Section, ...]] = (
    Section(
        TEXTURED_PAGE,
        "What was trained",
        TRAINED,
        TRAINING,
        "By the manifests of the folder. `target64` and `target128` are one network; `codebook`, `vq_encoder` and "
        "`vq_decoder` are one tokenizer.",
    ),
    *(section for side in PREMISES_OF for section in _premises(side)),
    *(
        _compared(
            file,
            f"Chosen methods on more prompts, 128 px, temperature {t}",
            "`zipar` over two cells takes three quarters of the passes that `mulo-islands` does in both resolutions "
            "together, whose rows lie two cells behind in repair. The low target of `mulo-islands` multiplies in 8 "
            "bits, which the paper does not do."
            if t
            else "",
        )
        for t, file in QUALITY.items()
    ),
    _compared(
        ISLANDS,
        "Islands on more prompts, 128 px, temperature 1",
        "As they are tuned: in repair a row of an island lies one cell behind the row above it. The low target "
        "multiplies in 8 bits.",
    ),
    _compared(
        TWO_BEHIND,
        "Islands whose rows lie two cells behind, 128 px, temperature 1",
        "`zipar` over three cells takes as many passes as `mulo-islands` does in both resolutions together. The low "
        "target of `mulo-islands` multiplies in 8 bits.",
    ),
    *(
        _compared(
            file,
            f"Earlier, on other prompts and another processor, 128 px, temperature {t}",
            ("`mulo-islands` drafted in float32 and kept more then. " if t else "")
            + f"The command wrote `{QUALITY[t]}`, now another.",
        )
        for t, file in MORE.items()
    ),
    Section(
        TEXTURED_PAGE,
        "Known damage: which measure sees it, and with how many pictures",
        DAMAGE,
        DAMAGE_COLUMNS,
        "Two pictures of AR a prompt, with different noise; in the second, tokens are replaced by near codes. "
        "*Pictures needed* gives a chance of 0.8 that the 95 % interval leaves out no damage; for the classifier it is "
        "the fewest prompts tried from which on its interval does. What 0.02 of accuracy is worth in log-probability "
        "is small: both losses are noisy.",
    ),
    *(_compared(file, f"Methods beside each other, 128 px, temperature {t}") for t, file in COMPARED.items()),
    *(
        Section(
            TEXTURED_PAGE,
            f"Where a picture's time goes, 128 px, temperature {t}",
            file,
            SPENT,
            "Of the same comparison. *Samplers* are MuLo-SD's networks between the resolutions.",
        )
        for t, file in COMPARED.items()
    ),
    _compared(SMALL, "Methods beside each other, 64 px, temperature 1"),
    *(
        Section(
            TEXTURED_PAGE,
            f"`lantern` beside each of the others, 128 px, temperature {t}",
            file,
            PAIRED,
            "Picture by picture, of the same comparison: how many times as fast as the other `lantern` is.",
        )
        for t, file in PAIRED_BY.items()
    ),
    *(
        Section(
            TEXTURED_PAGE,
            f"`roofline` and its own window, 128 px, temperature {t}",
            f"textured-paired-roofline-128-t{t}.json",
            PAIRED,
            "Picture by picture: how many times as fast as the other `roofline` is.",
        )
        for t in (1, 0)
    ),
    Section(
        TEXTURED_PAGE,
        "Where lossless methods part from plain decoding, 128 px, temperature 0",
        TIES,
        TIES_COLUMNS,
        "A larger pass rounds otherwise, so a method can choose another token where two tie: their log-probabilities "
        "differ by no more than rounding makes, in passes of 1, 3 and 8 positions.",
    ),
    *(_compared(file, f"The papers' own settings, 128 px, temperature {t}") for t, file in PAPER.items()),
    *(
        Section(
            TEXTURED_PAGE,
            f"`eagle2` beside each of the others, the papers' own settings, 128 px, temperature {t}",
            file,
            PAIRED,
            "Picture by picture: how many times as fast the other `eagle2` is, and how much deeper its drafts are.",
        )
        for t, file in PAPER_PAIRED.items()
    ),
    _compared(
        CONTROL,
        "ADT-Tree and its control at the papers' own settings, 128 px, temperature 1",
        "`adt-control-tree` drafts EAGLE-2's trees of ADT-Tree's mean depth and number of nodes, and never adapts.",
    ),
    Section(
        TEXTURED_PAGE,
        "ADT-Tree with LANTERN, one setting at a time, 128 px, temperature 1",
        SETTINGS,
        SPREAD,
        "The default is one token wide (`max_width=1`): there `step_width` changes nothing.",
    ),
    _compared(
        POOLED,
        "ADT-Tree with LANTERN by how many near codes it pools, 128 px, temperature 0",
        "On other prompts: the more codes, the faster. `adt+lantern++` pools 10, in "
        "proportion to the token's own probability.",
    ),
    _compared(
        FEWER,
        "ADT-Tree with LANTERN that pools 30 near codes, on more prompts, 128 px, temperature 0",
        f"The prompts of `{QUALITY[0]}`, where it pools 250.",
    ),
    _compared(
        UNBOUNDED,
        "ADT-Tree with LANTERN without a bound, 128 px, temperature 1",
        "With delta = 1 nothing limits how far LANTERN's distribution may lie from the target's.",
    ),
    Section(
        TEXTURED_PAGE,
        "What each part of MuLo-SD adds, 128 px, temperature 1",
        ABLATION,
        JUDGED,
        "Serial repair of the whole draft in row fronts of two cells, and what is varied. In the variants of local and "
        "of raster rejection two low rows are drafted a cycle. *Matched*: the threshold at which as much of the draft "
        "is kept as by `local + expansion` or `pooled`. Differences pair by pair: [claims.md](claims.md).",
    ),
    Section(
        TEXTURED_PAGE,
        "What row fronts add to MuLo-SD, and what pictures do between the resolutions, 128 px, temperature 1",
        FRONTS,
        JUDGED,
        "Serial repair of the whole draft in raster order, and what is varied. `sampler bicubic` decodes, resizes and "
        "encodes pictures; `sampler latent` is the network on codes that ships.",
    ),
    Section(
        TEXTURED_PAGE,
        "What the losses of MuLo-SD's samplers add, 128 px, temperature 1",
        LOSSES,
        UNTIMED,
        "Other work ran beside it, so no times are shown. `latent` ships: tokens and pictures on the way up, tokens on "
        "the way down. `latent-ce` knows tokens alone; `latent-gan` adds a critic on the way up, `latent-down-pixel` "
        "pictures on the way down, `latent-down-gan` both there. Where the way down counts, two low rows are drafted a "
        "cycle, as in `local + expansion`.",
    ),
    _compared(
        PAIR_OF_ROWS,
        "Guidance by a true pair of rows, 128 px, temperature 1",
        "The target is the one before guidance was baked in. The drafter learnt from the one after, of one row. "
        "`mulo-islands` drafted in float32 and kept more then.",
    ),
    _compared(
        EIGHT_BITS,
        "Targets that multiply in 8 bits, 128 px, temperature 1",
        "Speed-ups are over plain decoding by these targets; the seconds of a picture compare them with those in "
        "float32. *Lossless* is said of the rule: products in 8 bits depend on the size of a pass.",
    ),
)

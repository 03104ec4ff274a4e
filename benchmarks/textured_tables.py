"""Tables of docs/results/textured.md: the models of TexturedScenes, in the regime that the papers argue from."""

from collections.abc import Callable
from typing import Final

from benchmarks.page_cells import Column, Row, Section, interval, number, plain, word
from benchmarks.page_columns import DAMAGE as DAMAGE_COLUMNS
from benchmarks.page_columns import PAIRED, PREMISES, SPEED, SPREAD
from benchmarks.page_columns import TIES as TIES_COLUMNS
from benchmarks.textured_bars import (
    ABLATION,
    COMPARED,
    CONTROL,
    DAMAGE,
    EIGHT_BITS,
    FEWER,
    FRONTS,
    ISLANDS,
    LOSSES,
    MORE,
    PAIR_OF_ROWS,
    PAPER,
    PAPER_PAIRED,
    POOLED,
    QUALITY,
    SETTINGS,
    SMALL,
    TIES,
    TRAINED,
    TWO_BEHIND,
    UNBOUNDED,
)
from benchmarks.textured_bars import PAIRED as PAIRED_BY
from benchmarks.textured_bars import PREMISES as PREMISES_OF

TEXTURED_PAGE: Final = "textured"
BAR_COLUMNS: Final = ("what was asked", "measured (95 %)", "met", "what would just do", "record")
BARS_RULE: Final = """What these models were to show before the comparison of methods on them says something about the
papers' models ([TexturedScenes](../explanation/scenes.md)). *Met*: the whole interval is on the wanted side of the bar,
or the figure, where it has no interval; *cannot be told*: the interval lies on both sides. A bar of several records is
of all their pictures, which share no prompt: the mean of their figures, of speed-ups' logarithms, weighed by pictures.
Speed-ups are of one processor, and every figure of one setting of the method: other records are left out.
*What would just do*: the tokens that a cycle would have to draw, or the target passes that would be left, if each cost
what it costs in the record. A target that has learnt little is flat as well: read the first bar beside its
cross-entropy."""


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
    passes = (
        "In plain passes, inside decoding cycles, by the nodes of the pass: what verification in parallel costs. A bar "
        "over nodes that no pass here had is of the line between its neighbours."
    )
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
            f"The methods that bars are of, on more prompts, 128 px, temperature {t}",
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
        "stands in the bars: of each damage beside its own picture before it. Both losses are noisy, so that figure is "
        "rather too small, and the bar too strict.",
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
        "On prompts apart from those that bars are of: the more codes, the faster. `adt+lantern++` pools 10, in "
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

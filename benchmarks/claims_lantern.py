"""The claims of LANTERN and LANTERN++ that models of this size can test."""

from benchmarks.claim_parts import (
    BUDGET,
    COMPARED,
    DAMAGE,
    DUPLICATES,
    FRONTIER,
    LANTERN,
    OVERLAP,
    PREMISES,
    Claim,
    faster,
    keeps_accuracy,
    keeps_likelihood,
    over_ar,
    simulated,
)
from benchmarks.verdicts import (
    Counted,
    Figure,
    Measure,
    NoFigureError,
    Records,
    Sense,
    figure,
    less,
    of_row,
    pick,
    quotient,
    record,
)


def _near_code(records: Records) -> Figure:
    """What the 50th nearest code costs in log-likelihood beyond the nearest."""
    near, far = (pick(records, DAMAGE, share=0.2, rank=rank, measure="log_likelihood") for rank in (1, 50))
    return less(of_row(near, "difference"), of_row(far, "difference"))


def _picture_change(records: Records) -> Figure:
    """How many times more a random code changes the picture than the nearest."""
    rows = {row["rank"]: row for row in record(records, DUPLICATES)["replacements"]}
    if not {0, 1} <= rows.keys():
        raise NoFigureError(f"`{DUPLICATES}` lacks the nearest or the random code")
    return quotient(of_row(rows[0], "change_mse"), of_row(rows[1], "change_mse"))


def _beyond_delta(drawn: str, siblings: int) -> Measure:
    """In how many enumerated cases LANTERN's rule, with the paper's residual, passes its delta."""

    def measure(records: Records) -> Counted:
        row = pick(records, BUDGET, rival="lantern, paper", drawn=drawn, siblings=siblings)
        return Counted(row["rival_beyond_its_delta"], row["cases"])

    return measure


def _spent_delta(records: Records) -> Figure:
    """The share of its delta that LANTERN's bias came to on the engine."""
    settings = record(records, COMPARED[1])["settings"]["methods"].get("lantern")
    if settings is None:
        raise NoFigureError(f"`{COMPARED[1]}` has no settings of lantern")
    delta = settings["rule_settings"]["delta"]
    bias = of_row(pick(records, FRONTIER, method="lantern"), "token_bias")
    return quotient(bias, Figure(delta, delta, delta))._replace(both_ends=False)


def _bound(drawn: str, siblings: int, words: str, remark: str = "") -> Claim:
    text = f"Total variation from the target never passes `delta`: {words}."
    known = "Exact, on random targets and drafts; the paper's residual."
    measure = _beyond_delta(drawn, siblings)
    told = f"{known} {remark}".strip()
    return Claim(LANTERN, text, "bound by `delta`", (BUDGET,), measure, Sense.NEVER, remark=told)


LANTERN_CLAIMS = (
    Claim(
        LANTERN,
        "Next-token distributions of images are flat: the likeliest token has less than half of the probability.",
        "flat",
        (PREMISES,),
        figure(PREMISES, "value", figure="likeliest token, mean probability"),
        Sense.BELOW,
        0.5,
        remark="At the papers' sampling, without top-k.",
    ),
    Claim(
        LANTERN,
        "Token selection is ambiguous: drafter and target share less than half of their probability.",
        "about 0.04 of drafted tokens accepted (LlamaGen)",
        (PREMISES,),
        figure(PREMISES, "value", figure=OVERLAP),
        Sense.BELOW,
        0.5,
        remark="What a drawn token is accepted with by the exact rule, one past the root.",
    ),
    Claim(
        LANTERN,
        "Near codes are interchangeable to the model: those nearest to the drawn one have more of the probability than "
        "random ones as frequent.",
        "no figure",
        (PREMISES,),
        figure(PREMISES, "value", figure="nearest codes over random ones"),
        form=".1f",
    ),
    Claim(
        LANTERN,
        "Near codes are interchangeable in the picture: one token in five replaced by its nearest code costs less "
        "log-likelihood than by its 50th.",
        "no figure",
        (DAMAGE,),
        _near_code,
        bound=0.0,
        form="+.2f",
    ),
    Claim(
        LANTERN,
        "Near codes look alike: a random code changes the picture more than the nearest does, in mean squared error.",
        "no figure",
        (DUPLICATES,),
        _picture_change,
        form=".0f",
        remark="Of the textured scenes' tokenizer, whose target does not ship.",
    ),
    over_ar(LANTERN, "eagle2", 0, 1.29),
    Claim(
        LANTERN,
        "`eagle2` is no faster than plain decoding, temperature 1.",
        "0.93x",
        (COMPARED[1],),
        figure(COMPARED[1], "speedup", method="eagle2"),
        Sense.BELOW,
        published_value=0.93,
    ),
    over_ar(LANTERN, "lantern", 0, 2.26),
    over_ar(LANTERN, "lantern", 1, 1.69),
    faster(LANTERN, "lantern", "eagle2", 0, "1.75x (2.26 / 1.29)", 1.75),
    faster(LANTERN, "lantern", "eagle2", 1, "1.76x (1.82x in the final version)", 1.76),
    simulated(LANTERN, "lantern", "eagle2", "1.76x", 1.76),
    _bound("top_k", 1, "one likeliest draft"),
    _bound("top_k", 3, "three likeliest drafts, tried in turn", "Each one that is refused pools anew."),
    _bound("iid", 1, "one draft drawn by chance", "The bound is of one pooled distribution; each draft has another."),
    Claim(
        LANTERN,
        "On the engine the mean bias of a token is below `delta`: the share of it that is spent is below 1.",
        "bound by `delta`",
        (FRONTIER, COMPARED[1]),
        _spent_delta,
        Sense.BELOW,
        remark="A mean over cells; the bound is of every cell. Trees of likeliest drafts, the standard residual.",
    ),
    keeps_accuracy(LANTERN, "lantern", COMPARED[0], ", temperature 0", "FID +3.53 at most"),
    keeps_accuracy(LANTERN, "lantern", COMPARED[1], ", temperature 1", "FID +3.53 at most"),
    keeps_likelihood(LANTERN, "lantern", "FID +3.53 at most"),
    faster(LANTERN, "eagle1", "eagle2", 1, "static trees in place of EAGLE-2's (LANTERN++)"),
    faster(LANTERN, "lantern++", "lantern", 0, "up to 2.56x over plain decoding"),
    faster(LANTERN, "lantern++", "lantern", 1, "up to 2.56x over plain decoding"),
)

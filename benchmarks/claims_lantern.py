"""The claims of LANTERN and LANTERN++ that models of this size can test."""

from typing import Final

from benchmarks.claim_parts import (
    BUDGET,
    COMPARED,
    DAMAGE,
    EMOJI,
    FRONTIER,
    LANTERN,
    OVERLAP,
    Claim,
    World,
    faster,
    keeps_accuracy,
    keeps_likelihood,
    over_ar,
    simulated,
)
from benchmarks.verdicts import (
    Counted,
    Figure,
    Figured,
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


def _beyond_delta(drawn: str, siblings: int) -> Measure:
    """In how many enumerated cases LANTERN's rule, with the paper's residual, passes its delta."""

    def measure(records: Records) -> Counted:
        row = pick(records, BUDGET, rival="lantern, paper", drawn=drawn, siblings=siblings)
        return Counted(row["rival_beyond_its_delta"], row["cases"])

    return measure


def _spent_delta(method: str, compared: str, biases: str) -> Figured:
    """The share of its delta that a method's bias came to on the engine: of a comparison, and of where biases are."""

    def measure(records: Records) -> Figure:
        settings = record(records, compared)["settings"]["methods"].get(method)
        if settings is None:
            raise NoFigureError(f"`{compared}` has no settings of {method}")
        delta = settings["rule_settings"]["delta"]
        bias = of_row(pick(records, biases, method=method), "token_bias")
        return quotient(bias, Figure(delta, delta, delta))._replace(both_ends=False)

    return measure


MEAN_BIAS: Final = "A mean over cells; the bound is of every cell. Trees of likeliest drafts, the standard residual."


def spent_claim(method: str, compared: str, biases: str, what: str, remark: str, world: World = EMOJI) -> Claim:
    """A method's bias on the engine is below its delta. what: words that tell the claim from another of its kind."""
    return Claim(
        LANTERN + world.suffix,
        f"On the engine the mean bias of a token is below `delta`{what}: the share of it that is spent is below 1.",
        "bound by `delta`",
        tuple(dict.fromkeys((biases, compared))),
        _spent_delta(method, compared, biases),
        Sense.BELOW,
        remark=remark,
        needs=f"`underpaint compare --save-replay 16` with `{method}`",
    )


def _bound(drawn: str, siblings: int, words: str, remark: str = "") -> Claim:
    text = f"Total variation from the target never passes `delta`: {words}."
    known = "Exact, on random targets and drafts; the paper's residual."
    measure = _beyond_delta(drawn, siblings)
    told = f"{known} {remark}".strip()
    return Claim(LANTERN, text, "bound by `delta`", (BUDGET,), measure, Sense.NEVER, remark=told)


def premise_claims(world: World) -> tuple[Claim, ...]:
    """What LANTERN takes for granted, by the premises of one world's models."""
    return (
        Claim(
            LANTERN + world.suffix,
            "Next-token distributions of images are flat: the likeliest token has less than half of the probability.",
            "flat",
            (world.premises,),
            figure(world.premises, "value", figure="likeliest token, mean probability"),
            Sense.BELOW,
            0.5,
            remark="At the papers' sampling, without top-k.",
        ),
        Claim(
            LANTERN + world.suffix,
            "Token selection is ambiguous: drafter and target share less than half of their probability.",
            "about 0.04 of drafted tokens accepted (LlamaGen)",
            (world.premises,),
            figure(world.premises, "value", figure=OVERLAP),
            Sense.BELOW,
            0.5,
            remark="What a drawn token is accepted with by the exact rule, one past the root.",
        ),
        Claim(
            LANTERN + world.suffix,
            "Near codes are interchangeable to the model: those nearest to the drawn one have more of the probability "
            "than random ones as frequent.",
            "no figure",
            (world.premises,),
            figure(world.premises, "value", figure="nearest codes over random ones"),
            form=".1f",
        ),
    )


def eagle2_gains_nothing(world: World) -> Claim:
    """Exact trees bring nothing where something is drawn by chance."""
    return Claim(
        LANTERN + world.suffix,
        "`eagle2` is no faster than plain decoding, temperature 1.",
        "0.93x",
        (world.compared[1],),
        figure(world.compared[1], "speedup", method="eagle2"),
        Sense.BELOW,
        published_value=0.93,
    )


LANTERN_CLAIMS = (
    *premise_claims(EMOJI),
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
    over_ar(LANTERN, "eagle2", 0, 1.29),
    eagle2_gains_nothing(EMOJI),
    over_ar(LANTERN, "lantern", 0, 2.26),
    over_ar(LANTERN, "lantern", 1, 1.69),
    faster(LANTERN, "lantern", "eagle2", 0, "1.75x (2.26 / 1.29)", 1.75),
    faster(LANTERN, "lantern", "eagle2", 1, "1.76x (1.82x in the final version)", 1.76),
    simulated(LANTERN, "lantern", "eagle2", "1.76x", 1.76),
    _bound("top_k", 1, "one likeliest draft"),
    _bound("top_k", 3, "three likeliest drafts, tried in turn", "Each one that is refused pools anew."),
    _bound("iid", 1, "one draft drawn by chance", "The bound is of one pooled distribution; each draft has another."),
    spent_claim("lantern", COMPARED[1], FRONTIER, "", MEAN_BIAS),
    keeps_accuracy(LANTERN, "lantern", COMPARED[0], ", temperature 0", "FID +3.53 at most"),
    keeps_accuracy(LANTERN, "lantern", COMPARED[1], ", temperature 1", "FID +3.53 at most"),
    keeps_likelihood(LANTERN, "lantern", "FID +3.53 at most"),
    faster(LANTERN, "eagle1", "eagle2", 1, "static trees in place of EAGLE-2's (LANTERN++)"),
    faster(LANTERN, "lantern++", "lantern", 0, "up to 2.56x over plain decoding"),
    faster(LANTERN, "lantern++", "lantern", 1, "up to 2.56x over plain decoding"),
)

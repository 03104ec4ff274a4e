"""The claims of ADT-Tree that models of this size can test."""

from benchmarks.claim_parts import (
    ACCURACY,
    ADT,
    COMPARED,
    EMOJI,
    Claim,
    World,
    faster,
    keeps_accuracy,
    over_ar,
    simulated,
)
from benchmarks.verdicts import (
    Counted,
    Figure,
    Figured,
    NoFigureError,
    Records,
    Sense,
    difference,
    figure,
    inverse,
    of_row,
    pick,
    quotient,
)

_LEFT, _UPPER = "overlap, correlation with the left cell's", "overlap, correlation with the upper cell's"
_OTHER = "the same with another image's cell"

DEFAULT, TWO_WIDE = "default", "max_width=2"
"""Variants of `benchmarks.settings`."""
_WIDTH = "The tuned tree is one token wide: `step_width` changes nothing, and with `step_depth=0` nothing adapts."
EQUAL_DEPTH = "The control drafts chains of ADT-Tree's mean depth and node count and never adapts: what adapting adds."


def lossless_claim(world: World) -> Claim:
    """Of how many pictures ADT-Tree drew other tokens than plain decoding, where nothing is drawn by chance."""

    def drawn_otherwise(records: Records) -> Counted:
        row = pick(records, world.compared[0], method="adt")
        return Counted(round(row["images"] * (1 - row["identical_share"])), row["images"])

    return Claim(
        ADT + world.suffix,
        "ADT-Tree is lossless: it never draws other tokens than plain decoding, temperature 0.",
        "lossless",
        (world.compared[0],),
        drawn_otherwise,
        Sense.NEVER,
        remark="At temperature 1 it is proved by enumeration in the tests.",
    )


def ties_claim(world: World, ties: str) -> Claim:
    """Of `lossless_claim`'s pictures, those that part where no two tokens tie. ties: record of `benchmarks.ties`."""

    def parted(records: Records) -> Counted:
        row = pick(records, ties, method="adt")
        return Counted(row["beyond_ties"], row["pictures"])

    return Claim(
        ADT + world.suffix,
        "Where ADT-Tree parts from plain decoding, temperature 0, the target's two tokens tie.",
        "not compared",
        (ties,),
        parted,
        Sense.NEVER,
        remark="Counted are pictures that part elsewhere. A larger pass rounds otherwise.",
    )


def _variant(file: str, better: str, worse: str) -> Figured:
    """Two variants of the settings, one over the other: by way of the default, picture by picture, where recorded."""

    def measure(records: Records) -> Figure:
        rows = {name: pick(records, file, variant=name) for name in (better, worse)}
        if any("over_default" not in row for row in rows.values()):
            return quotient(*(of_row(row, "speedup") for row in rows.values()))
        first, second = (of_row(row, "over_default") for row in rows.values())
        return first if worse == DEFAULT else inverse(second) if better == DEFAULT else quotient(first, second)

    return measure


def _settings_claim(world: World, text: str, published: str, better: str, worse: str) -> Claim:
    """One variant of the settings is faster than another."""
    measure = _variant(world.settings, better, worse)
    remark = "With LANTERN, temperature 1, trees at their tuned sizes."
    return Claim(ADT + world.suffix, text, published, (world.settings,), measure, remark=remark)


def start_claims(world: World) -> tuple[Claim, ...]:
    """From which tree the next one starts."""
    return tuple(
        _settings_claim(
            world, f"Starting from the {better} comes before {worse}, by speed.", "horizontal wins", first, second
        )
        for better, worse, first, second in (
            ("left neighbour's tree (horizontal)", "the upper one's (vertical)", DEFAULT, "init=vertical"),
            ("upper neighbour's tree (vertical)", "a random one", "init=vertical", "init=random"),
            ("left neighbour's tree (horizontal)", "a random one", DEFAULT, "init=random"),
        )
    )


def depth_claim(world: World) -> Claim:
    """Adapting depth over adapting nothing: where trees are one token wide, the default adapts nothing else."""

    def measure(records: Records) -> Figure:
        chains = [pick(records, world.settings, variant=name)["tokens_per_cycle"] for name in (DEFAULT, "step_width=0")]
        if chains[0] != chains[1]:
            raise NoFigureError("The trees of this record adapt their width too")
        return _variant(world.settings, DEFAULT, "step_depth=0")(records)._replace(note=_WIDTH)

    text = "Adapting the depth alone is faster than adapting nothing."
    return Claim(ADT + world.suffix, text, "no figure", (world.settings,), measure)


def forked_claims(world: World) -> tuple[Claim, ...]:
    """What adapting the width adds: trees start one token wide and may become two."""
    fixed, where = f"{TWO_WIDE} step_depth=0 step_width=0", "where trees start one token wide and may be two"
    return tuple(
        _settings_claim(world, f"Adapting {what} is faster than adapting nothing, {where}.", "no figure", better, fixed)
        for what, better in (
            ("the width alone", f"{TWO_WIDE} step_depth=0"),
            ("the width and the depth", TWO_WIDE),
        )
    )


def locality_claims(world: World) -> tuple[Claim, ...]:
    """What ADT-Tree takes for granted, by the premises of one world's models."""
    return (
        *(
            Claim(
                ADT + world.suffix,
                f"Difficulty is local: overlap correlates with {where} cell's more than with another image's cell.",
                "no figure",
                (world.premises,),
                difference(world.premises, {"figure": name}, {"figure": _OTHER}, "value"),
                bound=0.0,
                form="+.2f",
            )
            for where, name in (("the left", _LEFT), ("the upper", _UPPER))
        ),
        Claim(
            ADT + world.suffix,
            "Regions differ in difficulty: the likeliest token of the surest region has more than that of the least "
            "sure.",
            "no figure",
            (world.premises,),
            figure(world.premises, "value", figure="likeliest token, surest region over least sure"),
        ),
    )


ADT_CLAIMS = (
    over_ar(ADT, "adt", 0, 2.21),
    over_ar(ADT, "adt", 1, 1.05, "about 1.05x (reviews)"),
    faster(ADT, "adt", "eagle2", 0, "1.36x (2.21 / 1.62)", 2.21 / 1.62),
    faster(ADT, "adt", "eagle2", 1, "no figure", remark="The paper's 1.36x is at temperature 0."),
    simulated(ADT, "adt", "eagle2", "1.36x at temperature 0", 2.21 / 1.62),
    *(faster(ADT, "adt", "adt-control-chain", t, "not compared", remark=EQUAL_DEPTH) for t in (0, 1)),
    lossless_claim(EMOJI),
    *(
        Claim(
            ADT,
            f"ADT-Tree's mean depth is below EAGLE-2's, temperature {t}, in levels.",
            published,
            (COMPARED[t],),
            difference(COMPARED[t], {"method": "adt"}, {"method": "eagle2"}, "mean_depth"),
            Sense.BELOW,
            0.0,
            form="+.2f",
            needs="intervals of `mean_depth` over pictures",
            remark="EAGLE-2's own depth was tuned for this machine.",
        )
        for t, published in ((0, "3.86 levels"), (1, "no figure"))
    ),
    *locality_claims(EMOJI),
    *start_claims(EMOJI),
    depth_claim(EMOJI),
    Claim(
        ADT,
        "Adapting the width alone is faster than adapting nothing.",
        "no figure",
        needs="`step_depth=0` with trees that may fork, `step_width` 0 and 1, on one set of prompts",
        remark=_WIDTH,
    ),
    *(
        faster(ADT, "adt+lantern", "lantern", t, published, value)
        for t, published, value in ((0, "1.03x (3.13 / 3.03)", 3.13 / 3.03), (1, "no figure", None))
    ),
    *(
        keeps_accuracy(ADT, "adt+lantern", ACCURACY[t], f", temperature {t}", "CLIP score 0.3081 against 0.3086")
        for t in (0, 1)
    ),
)

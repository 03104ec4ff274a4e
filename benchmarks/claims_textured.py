"""The claims as the models of TexturedScenes answer them: flat distributions, near codes, guidance.

They are the models that ship. What has no record of them says what would be needed.
"""

from benchmarks.claim_parts import (
    ADT,
    DUPLICATES,
    LANTERN,
    MULO,
    OVERLAP,
    TEXTURED,
    Claim,
    faster,
    keeps_accuracy,
    keeps_likelihood,
    keeps_log_probability,
    over_ar,
)
from benchmarks.claims_adt import (
    EQUAL_DEPTH,
    depth_claim,
    forked_claims,
    locality_claims,
    lossless_claim,
    start_claims,
    ties_claim,
)
from benchmarks.claims_lantern import MEAN_BIAS, eagle2_gains_nothing, premise_claims, spent_claim
from benchmarks.claims_mulo import (
    GENEVAL,
    front_claims,
    loss_claims,
    needed_claims,
    order_claims,
    pixel_claims,
    resolution_claim,
    serial_claims,
)
from benchmarks.textured_bars import (
    CONTROL,
    FRONTS,
    ISLANDS,
    LOSSES,
    PAPER,
    PAPER_PAIRED,
    QUALITY,
    SMALL,
    TIES,
    TWO_BEHIND,
)
from benchmarks.textured_bars import MULO as MULO_FILE
from benchmarks.verdicts import (
    Figure,
    Figured,
    NoFigureError,
    Records,
    figure,
    of_row,
    paired_speed,
    pick,
    quotient,
    ratio,
    record,
)

TEXTURED_PAPERS = tuple(paper + TEXTURED.suffix for paper in (LANTERN, ADT, MULO))
_LANTERN, _ADT, _MULO = TEXTURED_PAPERS
_ONE_CELL = "Row fronts of one cell, the fastest; they lose quality, see its record."
_EQUAL_PASSES = (
    "Row fronts of three cells, in as many passes as both resolutions of the islands, whose rows lie two cells behind."
)
_ACCURACY_LOSS = "FID +3.53 at most"
_LOOSE = f"{MEAN_BIAS} A `delta` of 0.8 is loose: little could break it."


def _picture_change(records: Records) -> Figure:
    """How many times more a random code changes the picture than the nearest."""
    rows = {row["rank"]: row for row in record(records, DUPLICATES)["replacements"]}
    if not {0, 1} <= rows.keys():
        raise NoFigureError(f"`{DUPLICATES}` lacks the nearest or the random code")
    return quotient(of_row(rows[0], "change_mse"), of_row(rows[1], "change_mse"))


def _mulo(
    better: str,
    worse: str | None,
    published: str,
    value: float | None = None,
    remark: str = "",
    file: str = MULO_FILE,
) -> Claim:
    """One method of MuLo-SD's comparison is faster than another, or than plain decoding."""
    if worse is None:
        measure, other = figure(file, "speedup", method=better), "plain decoding"
    else:
        measure, other = ratio(file, {"method": better}, {"method": worse}), f"`{worse}`"
    text = f"`{better}` is faster than {other}, temperature 1."
    return Claim(_MULO, text, published, (file,), measure, published_value=value, remark=remark)


def _at_papers_settings(paper: str, better: str, t: int, published: str, value: float | None = None) -> Claim:
    """A method is faster than EAGLE-2 where both have the trees that papers report."""
    text = f"`{better}` is faster than `eagle2` at the papers' own settings, temperature {t}."
    measure = paired_speed(PAPER_PAIRED[t], better, "eagle2")
    return Claim(paper, text, published, (PAPER_PAIRED[t],), measure, published_value=value)


def _shallower(t: int) -> Claim:
    text = f"ADT-Tree's drafts are less deep than EAGLE-2's at the papers' own settings, temperature {t}, in levels."
    measure = figure(PAPER_PAIRED[t], "deeper", method="adt")
    return Claim(_ADT, text, "3.86 levels" if t == 0 else "no figure", (PAPER_PAIRED[t],), measure, bound=0.0)


def _over_control(file: str) -> Figured:
    """ADT-Tree's speed over that of trees which never adapt; the note tells how large both are."""

    def measure(records: Records) -> Figure:
        both = [pick(records, file, method=name) for name in ("adt", "adt-control-tree")]
        sizes = (f"{row['mean_depth']:.1f} levels and {row['mean_nodes']:.0f} nodes" for row in both)
        found = quotient(*(of_row(row, "speedup") for row in both))
        return found._replace(note=f"{found.note} Mean sizes: {', the control '.join(sizes)}.".strip())

    return measure


def _grows(paper: str, method: str, remark: str = "") -> Claim:
    """A method's gain at 128 px over its gain at 64 px, of two comparisons."""

    def measure(records: Records) -> Figure:
        return quotient(*(of_row(pick(records, file, method=method), "speedup") for file in (QUALITY[1], SMALL)))

    text = f"The gain of `{method}` over plain decoding grows from 64 to 128 px, temperature 1."
    return Claim(paper, text, "no figure", (QUALITY[1], SMALL), measure, remark=remark)


TEXTURED_CLAIMS = (
    *premise_claims(TEXTURED),
    Claim(
        _LANTERN,
        "Near codes look alike: a random code changes the picture more than the nearest does, in mean squared error.",
        "no figure",
        (DUPLICATES,),
        _picture_change,
        form=".0f",
    ),
    over_ar(LANTERN, "eagle2", 0, 1.29, world=TEXTURED),
    eagle2_gains_nothing(TEXTURED),
    over_ar(LANTERN, "lantern", 0, 2.26, world=TEXTURED),
    over_ar(LANTERN, "lantern", 1, 1.69, world=TEXTURED),
    faster(LANTERN, "lantern", "eagle2", 0, "1.75x (2.26 / 1.29)", 1.75, world=TEXTURED),
    faster(LANTERN, "lantern", "eagle2", 1, "1.76x (1.82x in the final version)", 1.76, world=TEXTURED),
    *(_at_papers_settings(_LANTERN, "lantern", t, f"{v:g}x", v) for t, v in ((0, 1.75), (1, 1.76))),
    *(
        spent_claim(method, TEXTURED.compared[1], TEXTURED.compared[1], f" of `{method}`", _LOOSE, TEXTURED)
        for method in ("lantern", "adt+lantern")
    ),
    *(
        keeps_accuracy(LANTERN, "lantern", TEXTURED.compared[t], f", temperature {t}", _ACCURACY_LOSS, TEXTURED)
        for t in (0, 1)
    ),
    *(keeps_log_probability(_LANTERN, "lantern", TEXTURED.compared[t], f", temperature {t}") for t in (0, 1)),
    keeps_likelihood(_LANTERN, "lantern", _ACCURACY_LOSS, TEXTURED.compared[1]),
    over_ar(ADT, "adt", 0, 2.21, world=TEXTURED),
    over_ar(ADT, "adt", 1, 1.05, "about 1.05x (reviews)", world=TEXTURED),
    faster(ADT, "adt", "eagle2", 0, "1.36x (2.21 / 1.62)", 2.21 / 1.62, world=TEXTURED),
    faster(ADT, "adt", "eagle2", 1, "no figure", remark="The paper's 1.36x is at temperature 0.", world=TEXTURED),
    *(faster(ADT, "adt", "adt-control-chain", t, "not compared", remark=EQUAL_DEPTH, world=TEXTURED) for t in (0, 1)),
    *(_at_papers_settings(_ADT, "adt", t, p, v) for t, p, v in ((0, "1.36x", 2.21 / 1.62), (1, "no figure", None))),
    *(
        Claim(
            _ADT,
            f"`adt` is faster than `adt-control-tree` at the papers' own settings, temperature {t}.",
            "not compared",
            (file,),
            _over_control(file),
            remark="The control's trees never adapt.",
        )
        for t, file in ((0, PAPER[0]), (1, CONTROL))
    ),
    *(_shallower(t) for t in (0, 1)),
    lossless_claim(TEXTURED),
    ties_claim(TEXTURED, TIES),
    *locality_claims(TEXTURED),
    *start_claims(TEXTURED),
    depth_claim(TEXTURED),
    *forked_claims(TEXTURED),
    *(
        faster(ADT, "adt+lantern", "lantern", t, published, value, world=TEXTURED)
        for t, published, value in ((0, "1.03x (3.13 / 3.03)", 3.13 / 3.03), (1, "no figure", None))
    ),
    over_ar(ADT, "adt+lantern", 0, 3.13, world=TEXTURED),
    over_ar(ADT, "adt+lantern", 1, None, "no figure", world=TEXTURED),
    _grows(_ADT, "adt+lantern"),
    *(
        keeps_accuracy(
            ADT, "adt+lantern", QUALITY[t], f", temperature {t}", "CLIP score 0.3081 against 0.3086", TEXTURED
        )
        for t in (0, 1)
    ),
    *(keeps_log_probability(_ADT, "adt+lantern", QUALITY[t], f", temperature {t}") for t in (0, 1)),
    keeps_likelihood(_ADT, "adt+lantern", "CLIP score 0.3081 against 0.3086", QUALITY[1]),
    _mulo("mulo", None, "1.22x (Tar-1.5B, 512 px, first version)", 1.22),
    *serial_claims(TEXTURED),
    _mulo("mulo-islands", "mulo", "faster"),
    _mulo("zipar", "mulo", "1.54x (ZipAR-16 1.88 / 1.22, first version)", 1.54, _ONE_CELL),
    _mulo("mulo-islands", "zipar", "not compared on one model", remark=_EQUAL_PASSES, file=TWO_BEHIND),
    *(
        claim
        for method, file in (("mulo", MULO_FILE), ("mulo-islands", ISLANDS))
        for claim in (
            keeps_accuracy(MULO, method, file, "", GENEVAL, TEXTURED),
            keeps_log_probability(_MULO, method, file),
        )
    ),
    keeps_likelihood(_MULO, "mulo-islands", GENEVAL, ISLANDS),
    keeps_log_probability(_MULO, "zipar", TWO_BEHIND, " in as many passes as `mulo-islands` with two cells behind"),
    keeps_log_probability(_MULO, "zipar", QUALITY[1], " in three quarters of those passes"),
    resolution_claim(TEXTURED),
    _grows(_MULO, "zipar", "Row fronts of two cells."),
    *needed_claims(TEXTURED, "prompt_accuracy", "attribute_log_probability"),
    *loss_claims(TEXTURED, "prompt_accuracy", "attribute_log_probability", file=LOSSES),
    *order_claims(TEXTURED),
    *front_claims(TEXTURED, FRONTS),
    *pixel_claims(TEXTURED, FRONTS),
)


def textured_introduction(records: Records) -> str:
    """What these models are and how the two worlds differ, by their records; empty where one of those is missing."""
    counted = (TEXTURED.compared[1], TEXTURED.compared[0], QUALITY[1], QUALITY[0], ISLANDS, PAPER[1], PAPER[0], CONTROL)
    parts = (TEXTURED.ablation, FRONTS, LOSSES)
    if not {*counted, *parts, TEXTURED.premises, TEXTURED.settings} <= records.keys():
        return ""
    prompts = {file: len(record(records, file)["settings"]["prompts"]) for file in (*counted, *parts)}
    warm, cold, *more = (prompts[file] for file in counted)
    settings, tuned = record(records, TEXTURED.compared[1])["settings"], record(records, TEXTURED.settings)["prompts"]
    sure = pick(records, TEXTURED.premises, figure="likeliest token, mean probability")["value"]
    shared = pick(records, TEXTURED.premises, figure=OVERLAP)["value"]
    rows = "in one row" if settings["guidance"] == 1 else f"{settings['guidance']:g} by a pair of rows"
    return f"""Tables that end in "on TexturedScenes" are of the models that ship, nearer to the papers':
{settings["vocab_size"]:,} codes, all of them kept, guidance {rows}. The likeliest code has {sure:.2f} of the
probability, and drafter and target share {shared:.2f} of theirs. Claims are judged at {settings["resolution"]} px, by
settings chosen on these models or on a target before them, unless a row says otherwise. They are of {warm} prompts at
temperature 1 and {cold} at 0; what the bars are of on {more[0]} and {more[1]} others, islands on {more[2]}. The papers'
own settings are of {more[3]} and {more[4]}, their static control at temperature 1 of {more[5]}, ADT-Tree's settings one
by one of {tuned}. The parts of MuLo-SD are of {prompts[TEXTURED.ablation]}, row fronts and pixels of {prompts[FRONTS]},
other losses of {prompts[LOSSES]}. In the latter two and in comparisons at the tuned settings MuLo-SD's low
target multiplies in 8 bits, which the paper's does not."""

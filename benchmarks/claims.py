"""What the three papers claim that models of this size can test: all claims, the rule, and what the size means.

Figures and verdicts are computed from benchmarks/results/ whenever `python -m benchmarks.pages` runs; what is written
down is the claim, what was published, and where to look.
"""

from collections.abc import Iterable

from benchmarks.claim_parts import ADT, COMPARED, LANTERN, MULO, OVERLAP, PREMISES, Claim, Judged
from benchmarks.claims_adt import ADT_CLAIMS
from benchmarks.claims_lantern import LANTERN_CLAIMS
from benchmarks.claims_mulo import MULO_CLAIMS
from benchmarks.claims_textured import TEXTURED_CLAIMS, TEXTURED_PAPERS
from benchmarks.verdicts import WANTED, Records, Verdict, pick, record

PAPERS = (LANTERN, ADT, MULO, *TEXTURED_PAPERS)
CLAIMS: tuple[Claim, ...] = (*LANTERN_CLAIMS, *ADT_CLAIMS, *MULO_CLAIMS, *TEXTURED_CLAIMS)

RULE = f"""A claim *holds* where its whole 95 % interval agrees with it, *does not hold here* where the whole interval
contradicts it, and *cannot be told* where the interval lies on both sides, where there is no interval or no record, or
where two variants that were to keep as much of a draft as each other did not.
Verdicts are of the direction; where the published figure lies outside the interval, the verdict says on which side. Of
what never happens one counter-example is enough. "Both ends": two recorded intervals were divided or subtracted end by
end, so the interval is wider than one of pairs would be. A loss of accuracy counts where it is above {WANTED:g}."""


def introduction(records: Records) -> str:
    """What the size of the EmojiScenes models means for the verdicts, with the figures that say so."""
    settings = record(records, COMPARED[1])["settings"]
    sure = pick(records, PREMISES, figure="likeliest token, mean probability")["value"]
    shared = pick(records, PREMISES, figure=OVERLAP)["value"]
    return f"""The papers draw photographs by models of hundreds of millions to billions of weights; models of
EmojiScenes draw scenes of {settings["resolution"]} px from {settings["vocab_size"]:,} codes, and comparisons keep the
{settings["top_k"]} likeliest. That is a smaller and more peaked world: even without that cut the likeliest code has
{sure:.2f} of the probability, and drafter and target share {shared:.2f} of theirs, where LANTERN's paper reports that
about 0.04 of drafted tokens are accepted. So EAGLE-2's exact trees have less to lose here and relaxed rules less to
win: "does not hold here" speaks of this world, not of the papers' models, and what holds is shown at this size, on
processors, where each further position of a pass costs time."""


def tallied(judged: Iterable[Judged], whose: str) -> str:
    """How many claims have which verdict; whose: the models."""
    found = [one.verdict for one in judged]
    counts = {one: found.count(one) for one in Verdict}
    return (
        f"Of {len(found)} rows on {whose} {counts[Verdict.HOLDS]} hold, {counts[Verdict.FAILS]} do not hold here and "
        f"{counts[Verdict.UNTOLD]} cannot be told."
    )

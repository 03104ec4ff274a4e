"""A claim of a paper, how a record answers it, and the claims that more than one paper makes.

The claims are in `claims_lantern`, `claims_adt`, `claims_mulo` and `claims_textured`; `claims` has all of them.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

from benchmarks import textured_bars
from benchmarks.verdicts import (
    WANTED,
    Figure,
    Measure,
    NoFigureError,
    Records,
    Sense,
    Verdict,
    beside_published,
    figure,
    paired_speed,
    ratio,
    verdict,
    written,
)

LANTERN = "LANTERN and LANTERN++ (arXiv 2410.03355, 2502.06352)"
ADT = "ADT-Tree (arXiv 2512.21857)"
MULO = "MuLo-SD (arXiv 2601.05149)"

COMPARED = {0: "compare-128-t0.json", 1: "compare-128-t1.json"}
PAIRED = {0: "paired-t0.json", 1: "paired-t1.json"}
ACCURACY = {0: "accuracy-128-t0.json", 1: "accuracy-128-t1.json"}
PREMISES, DUPLICATES, DAMAGE = "premises-128.json", "near-duplicates-128.json", "quality-damage.json"
BUDGET, FRONTIER, SIMULATED = "relaxed-budget.json", "frontier-t1.json", "simulated-methods.json"
SETTINGS, ABLATION, SAMPLERS = "adt-settings-t1.json", "mulo-ablation.json", "samplers.json"
MULO_COMPARED = "mulo-compare-t1-window3.json"


class World(NamedTuple):
    """The records of one family's models that claims of several kinds read.

    compared: comparisons by temperature. paired: of `benchmarks.paired_speed`, by temperature; where there is none,
    speed-ups are divided end by end. ablation: of the parts of MuLo-SD. settings: of ADT-Tree, one at a time. suffix:
    what papers' names end in, where claims are judged on this world. damage: page of what known damage does to each
    measure of quality.
    """

    compared: Mapping[int, str]
    paired: Mapping[int, str]
    premises: str
    ablation: str
    settings: str
    suffix: str = ""
    damage: str = "quality.md"


EMOJI = World(COMPARED, PAIRED, PREMISES, ABLATION, SETTINGS)
TEXTURED = World(
    textured_bars.COMPARED,
    textured_bars.PAIRED,
    textured_bars.PREMISES[128],
    textured_bars.ABLATION,
    textured_bars.SETTINGS,
    ", on TexturedScenes",
    "textured.md",
)


@dataclass(frozen=True)
class Claim:
    """A claim of a paper, and how a record answers it.

    text: in one plain sentence, as the figure tests it. published: what the paper or a reader of it reports;
    published_value: the same as the figure counts it, where it does. bound: what the figure must lie above or below.
    needs: what would have to be recorded, where nothing is or no interval.
    """

    paper: str
    text: str
    published: str
    files: tuple[str, ...] = ()
    measure: Measure | None = None
    sense: Sense = Sense.ABOVE
    bound: float = 1.0
    published_value: float | None = None
    form: str = ".2f"
    remark: str = ""
    needs: str = ""

    def judge(self, records: Records) -> "Judged":
        """What the records say; the same records, the same answer."""
        try:
            if self.measure is None:
                raise NoFigureError("Not measured")
            found = self.measure(records)
        except NoFigureError as error:
            why = f"{error}. Needed: {self.needs or 'that record'}."
            return Judged("", Verdict.UNTOLD, "", f"{self.remark} {why}".strip())
        told = verdict(found, self.sense, self.bound)
        bare = isinstance(found, Figure) and found.low is None
        why = f"No interval is recorded. Needed: {self.needs or 'one, over pictures'}." if bare else ""
        remark = " ".join(part for part in (self.remark, found.note, why) if part)
        beside = beside_published(found, self.published_value) if told is Verdict.HOLDS else ""
        return Judged(written(found, self.form), told, beside, remark)


class Judged(NamedTuple):
    """A claim's cells: the figure, the verdict, how it stands to the published figure, and what to know."""

    figure: str
    verdict: Verdict
    beside: str
    remark: str


def faster(
    paper: str,
    better: str,
    worse: str,
    t: int,
    published: str,
    value: float | None = None,
    remark: str = "",
    world: World = EMOJI,
) -> Claim:
    """One method is faster than another, at temperature `t`."""
    text = f"`{better}` is faster than `{worse}`, temperature {t}."
    if t in world.paired:
        file, measure = world.paired[t], paired_speed(world.paired[t], better, worse)
    else:
        file = world.compared[t]
        measure = ratio(file, {"method": better}, {"method": worse})
    return Claim(paper + world.suffix, text, published, (file,), measure, published_value=value, remark=remark)


def over_ar(paper: str, method: str, t: int, value: float | None, published: str = "", world: World = EMOJI) -> Claim:
    """A method is faster than AR, at temperature `t`."""
    text = f"`{method}` is faster than plain decoding, temperature {t}."
    file, told = world.compared[t], published or f"{value:g}x"
    measure = figure(file, "speedup", method=method)
    return Claim(paper + world.suffix, text, told, (file,), measure, published_value=value)


def simulated(paper: str, better: str, worse: str, published: str, value: float) -> Claim:
    """One method is faster than another in the simulator, at a size that does not ship."""
    text = f"`{better}` is faster than `{worse}` where distributions are flat, at the size of LlamaGen-XL on an A100."
    flat = {"preset": "paper", "model": "flat", "machine": "a100/llamagen-xl"}
    measure = ratio(SIMULATED, {"method": better, **flat}, {"method": worse, **flat})
    remark = "Simulated: a synthetic model, modelled time, temperature 1, the papers' settings."
    return Claim(paper, text, published, (SIMULATED,), measure, published_value=value, remark=remark)


def keeps_accuracy(paper: str, method: str, file: str, what: str, published: str, world: World = EMOJI) -> Claim:
    """A relaxed method loses no more accuracy than `WANTED`. what: words that tell the record from others."""
    text = f"`{method}` keeps quality: it loses no more than {WANTED:g} of prompt accuracy{what}."
    measure = figure(file, "accuracy_over_ar", method=method)
    remark = f"Accuracy is a blunt measure ([known damage]({world.damage}))."
    return Claim(paper + world.suffix, text, published, (file,), measure, bound=-WANTED, form="+.3f", remark=remark)


def keeps_log_probability(paper: str, method: str, file: str, what: str = "") -> Claim:
    """The judge finds the prompts' attributes as probable in a relaxed method's pictures as in plain decoding's."""
    text = f"`{method}` keeps quality: the judge gives the prompt's attributes no lower log-probability{what}."
    measure = figure(file, "attribute_log_probability_over_ar", method=method)
    remark = "The mean, less that of plain decoding."
    return Claim(paper, text, "no figure", (file,), measure, bound=0.0, form="+.3f", remark=remark)


def keeps_likelihood(paper: str, method: str, published: str, file: str = FRONTIER) -> Claim:
    """A relaxed method's pictures are as likely to the target as its own."""
    text = f"`{method}` keeps quality: its pictures are not less likely to the target than the target's own."
    measure = figure(file, "log_likelihood_over_ar", method=method)
    remark = "Log-likelihood a token, less that of plain decoding. Likelier is sharper, not better."
    return Claim(paper, text, published, (file,), measure, bound=0.0, form="+.2f", remark=remark)


OVERLAP = "overlap of drafter and target, 1 past the root"

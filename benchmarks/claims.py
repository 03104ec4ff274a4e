"""The papers' claims, each with what was measured on the models that ship: docs/results/claims.md.

A claim holds where the whole 95 % interval agrees with it and fails where the whole interval contradicts it. Otherwise
it is undecided.
"""

from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple

Record = Mapping[str, Any]
Row = Mapping[str, Any]
LANTERN: Final = "LANTERN"
ADT: Final = "ADT-Tree"
MULO: Final = "MuLo-SD"
_COMPARED: Final = "textured-compare-128-t{}.json"
_PAPER: Final = "textured-paired-paper-128-t{}.json"
_QUALITY: Final = "textured-quality-128-t{}.json"
_ISLANDS: Final = "textured-quality-islands-128-t1.json"
_PREMISES: Final = "textured-premises-128.json"
_ABLATION: Final = "textured-mulo-ablation.json"
_TIES: Final = "textured-ties-128-t0.json"


class Figure(NamedTuple):
    """A measured figure and the ends of its 95 % interval."""

    value: float
    low: float
    high: float

    def written(self, form: str) -> str:
        """The figure with its interval."""
        return f"{self.value:{form}} ({self.low:{form}} to {self.high:{form}})"


class Claim(NamedTuple):
    """A claim of a paper, and the record that answers it.

    measure: reads the figure from the record. bound: the claim says that the figure is above it, or below it with
    `below`. form: number format of the figure.
    """

    paper: str
    text: str
    published: str
    file: str
    measure: Callable[[Record], Figure]
    bound: float = 1.0
    form: str = ".2f"
    below: bool = False

    def verdict(self, record: Record) -> str:
        """`holds`, `fails` or `undecided`."""
        _, low, high = self.measure(record)
        agrees, contradicts = low > self.bound, high <= self.bound
        if self.below:
            agrees, contradicts = high < self.bound, low >= self.bound
        return "holds" if agrees else "fails" if contradicts else "undecided"

    def decided(self, record: Record) -> dict[str, Any]:
        """Return the claim, its measured figure, and the verdict."""
        return {"claim": self, "measured": self.measure(record).written(self.form), "verdict": self.verdict(record)}


def _figure(name: str, **values: object) -> Callable[[Record], Figure]:
    """Return a reader of a figure in the one row with these values; the interval of `value` is `low` and `high`."""

    def measure(record: Record) -> Figure:
        (row,) = (row for row in record["rows"] if all(row.get(key) == value for key, value in values.items()))
        low, high = ("low", "high") if name == "value" else (f"{name}_low", f"{name}_high")
        return Figure(row[name], row[low], row[high])

    return measure


def _inverse(measure: Callable[[Record], Figure]) -> Callable[[Record], Figure]:
    """Return a reader of 1 over a positive figure."""

    def inverted(record: Record) -> Figure:
        value, low, high = measure(record)
        return Figure(1 / value, 1 / high, 1 / low)

    return inverted


def _speedup(paper: str, method: str, temperature: int, published: str, file: str = _COMPARED) -> Claim:
    text = f"`{method}` is faster than plain decoding, temperature {temperature}"
    return Claim(paper, text, published, file.format(temperature), _figure("speedup", method=method))


def _over_eagle2(paper: str, method: str, temperature: int, published: str) -> Claim:
    """Return a claim of speed over EAGLE-2, paired by picture, at the papers' own settings."""
    text = f"`{method}` is faster than `eagle2`, both at the papers' settings, temperature {temperature}"
    measure = _inverse(_figure("faster", method=method))
    return Claim(paper, text, published, _PAPER.format(temperature), measure)


def _keeps_quality(paper: str, method: str, where: str, file: str, published: str) -> Claim:
    text = f"`{method}` loses less than 0.05 of prompt accuracy, {where}"
    return Claim(paper, text, published, file, _figure("accuracy_over_ar", method=method), -0.05, "+.3f")


def _mulo_part(better: str, worse: str, text: str) -> Claim:
    """Return a claim about a difference in prompt accuracy between two variants of MuLo-SD."""

    def measure(record: Record) -> Figure:
        (row,) = (
            row
            for row in record["orderings"]
            if (row["better"], row["worse"], row["figure"]) == (better, worse, "prompt_accuracy")
        )
        return Figure(row["difference"], row["low"], row["high"])

    return Claim(MULO, text, "claimed", _ABLATION, measure, 0.0, "+.3f")


def _equal_pictures(record: Record) -> Figure:
    """Return the share of `adt`'s pictures that equal plain decoding's, apart from ties in float32.

    If all are equal, the interval is the exact one-sided one of Clopper and Pearson.
    """
    (row,) = (row for row in record["rows"] if row["method"] == "adt")
    count, equal = row["pictures"], row["pictures"] - row["beyond_ties"]
    return Figure(equal / count, 0.05 ** (1 / count) if equal == count else 0.0, 1.0)


def _premise(paper: str, text: str, published: str, figure: str, bound: float = 1.0, below: bool = False) -> Claim:
    """Return a claim about a figure of `underpaint premises`."""
    return Claim(paper, text, published, _PREMISES, _figure("value", figure=figure), bound, below=below)


_FLAT: Final = "distributions are flat: the likeliest token has less than half the probability"
_NEAR: Final = "the 10 nearest codes hold more probability than 10 random ones as frequent"
CLAIMS: Final = (
    _premise(LANTERN, _FLAT, "flat", "likeliest token, mean probability", 0.5, below=True),
    _premise(
        LANTERN,
        "drafter and target share less than half their probability",
        "about 0.04 of drafts accepted",
        "overlap of drafter and target, 1 past the root",
        0.5,
        below=True,
    ),
    _premise(LANTERN, _NEAR, "no figure", "nearest codes over random ones"),
    _speedup(LANTERN, "eagle2", 0, "1.29x"),
    Claim(
        LANTERN,
        "`eagle2` is slower than plain decoding, temperature 1",
        "0.93x",
        _COMPARED.format(1),
        _figure("speedup", method="eagle2"),
        below=True,
    ),
    _speedup(LANTERN, "lantern", 0, "2.26x"),
    _speedup(LANTERN, "lantern", 1, "1.69x"),
    _over_eagle2(LANTERN, "lantern", 0, "1.75x"),
    _over_eagle2(LANTERN, "lantern", 1, "1.76x"),
    _keeps_quality(LANTERN, "lantern", "temperature 0", _COMPARED.format(0), "FID +3.53 at most"),
    _keeps_quality(LANTERN, "lantern", "temperature 1", _COMPARED.format(1), "FID +3.53 at most"),
    _speedup(ADT, "adt", 0, "2.21x"),
    _speedup(ADT, "adt", 1, "about 1.05x (reviews)"),
    _over_eagle2(ADT, "adt", 0, "1.36x"),
    _over_eagle2(ADT, "adt", 1, "no figure"),
    Claim(
        ADT,
        "`eagle2` drafts deeper than `adt`, both at the papers' settings, temperature 0, in levels",
        "mean depth 3.86",
        _PAPER.format(0),
        _figure("deeper", method="adt"),
        0.0,
    ),
    Claim(
        ADT,
        "`adt` is lossless: over 98 % of pictures equal plain decoding's, temperature 0, ties in float32 aside",
        "lossless",
        _TIES,
        _equal_pictures,
        0.98,
        ".3f",
    ),
    _premise(
        ADT,
        "difficulty is local: overlap correlates with the left cell's",
        "no figure",
        "overlap, correlation with the left cell's",
        0.0,
    ),
    _speedup(ADT, "adt+lantern", 0, "3.13x", _QUALITY),
    _speedup(ADT, "adt+lantern", 1, "no figure", _QUALITY),
    _keeps_quality(ADT, "adt+lantern", "temperature 0", _QUALITY.format(0), "CLIP 0.3081 against 0.3086"),
    _keeps_quality(ADT, "adt+lantern", "temperature 1", _QUALITY.format(1), "CLIP 0.3081 against 0.3086"),
    _speedup(MULO, "mulo", 1, "1.22x (Tar-1.5B, 512 px)"),
    _speedup(MULO, "mulo-islands", 1, "1.94x (Tar-1.5B, 512 px)", _ISLANDS),
    _keeps_quality(MULO, "mulo-islands", "temperature 1", _ISLANDS, "GenEval 77.7 to 76.0"),
    _keeps_quality(MULO, "zipar", "window 2, temperature 1", _QUALITY.format(1), "claimed (ZipAR)"),
    _mulo_part(
        "local + expansion", "plain local, matched", "expanding rejections keeps more accuracy than plain local repair"
    ),
    _mulo_part("local + expansion", "raster, matched", "local repair keeps more accuracy than raster rejection"),
    _mulo_part("pooled", "not pooled, matched", "pooling keeps more accuracy than none"),
)

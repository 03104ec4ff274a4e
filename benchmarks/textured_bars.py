"""What the models of TexturedScenes were to show, and whether the records of them do.

A bar is met where the figure's whole 95 % interval meets it, not met where the whole interval misses it, and cannot be
told where the interval lies on both sides; a figure that has no interval meets it or misses it by itself.
"""

import math
from collections.abc import Callable, Iterator
from functools import partial
from typing import Final, NamedTuple

from benchmarks.verdicts import (
    Figure,
    Figured,
    NoFigureError,
    Records,
    Row,
    Sense,
    figure,
    of_row,
    pick,
    pooled,
    record,
    share_of,
    written,
)

TRAINED: Final = "textured-training.json"
PREMISES: Final = {side: f"textured-premises-{side}.json" for side in (64, 128)}
COMPARED: Final = {temperature: f"textured-compare-128-t{temperature}.json" for temperature in (1, 0)}
"""All methods, by temperature, 128 px."""
MULO: Final = COMPARED[1]
"""With MuLo-SD's methods and row fronts."""
QUALITY: Final = {temperature: f"textured-quality-128-t{temperature}.json" for temperature in (1, 0)}
"""The methods that bars are of, on more prompts, by temperature, 128 px; beside `mulo-islands` row fronts that take as
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
PAIRED: Final = {temperature: f"textured-paired-128-t{temperature}.json" for temperature in (1, 0)}
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
LEAST_ACCURACY: Final = 0.75


class Bar(NamedTuple):
    """What a figure was to be.

    files: records that it is of. used: those of them that a figure is really of, None for all. sense: which side of
    `bound`, which itself is enough. form: of the figure. A bound that is a figure of a record has an interval of its
    own: a bar is met, or missed, by both of its ends. takes: in words, what would just do.
    """

    asked: str
    files: tuple[str, ...]
    measure: Figured
    sense: Sense
    bound: float | Figured
    form: str = ".2f"
    takes: Callable[[Records], str] = lambda records: ""
    used: Callable[[Records], tuple[str, ...]] | None = None

    def judged(self, records: Records) -> tuple[str, str]:
        """What was measured, and whether it meets the bar; raises NoFigureError where a record lacks a figure."""
        found = self.measure(records)
        told = written(found, self.form)
        if not callable(self.bound):
            return told, met(found, self.sense, self.bound)
        bound = self.bound(records)
        ends = [bound.value if one is None else one for one in (bound.low, bound.high)]
        verdicts = {met(found, self.sense, one) for one in ends}
        verdict = verdicts.pop() if len(verdicts) == 1 else "cannot be told"
        return f"{told}; the bar is {written(bound, self.form)}", verdict


def met(found: Figure, sense: Sense, bound: float) -> str:
    """Whether a figure meets a bar, by its interval where it has one."""
    ends = [one for one in (found.low, found.high) if one is not None and math.isfinite(one)]
    if len(ends) < 2:
        ends = [found.value]
    meets = {one >= bound if sense is Sense.ABOVE else one <= bound for one in ends}
    return "cannot be told" if len(meets) > 1 else "**met**" if meets == {True} else "**not met**"


def _pass_over(nodes: int, file: str) -> Figured:
    """A pass of one row over so many nodes inside decoding cycles, in plain passes."""

    def measure(records: Records) -> Figure:
        guidance = record(records, file)["settings"]["guidance"]
        if guidance != 1:
            raise NoFigureError(f"`{file}` is of guidance {guidance:g}, two rows a pass; the bar is for one")
        return figure(file, "value", figure=f"a target pass over {nodes} nodes in a cycle, plain passes")(records)

    return measure


def _premises(side: int) -> Iterator[Bar]:
    at, file, above = f"{side} px", PREMISES[side], Sense.ABOVE
    files = (file,)
    likeliest, near = "likeliest token, mean probability", "nearest codes over random ones"
    yield Bar(f"{at}: the likeliest token has at most 0.35", files, _value(file, likeliest), Sense.BELOW, 0.35, ".3f")
    yield Bar(f"{at}: the 10 nearest codes hold 3 times what random ones do", files, _value(file, near), above, 3.0)
    factor = _value(file, "likeliest token, surest region over least sure")
    yield Bar(f"{at}: the likeliest token's share differs by region, 1.5 times", files, factor, above, 1.5)
    for nodes, most in ((8, 1.5), (16, 1.95)):
        asked = f"{at}: a pass over {nodes} nodes costs at most {most:g} plain ones, one row, in decoding cycles"
        yield Bar(asked, files, _pass_over(nodes, file), Sense.BELOW, most)


def _value(file: str, name: str) -> Figured:
    return figure(file, "value", figure=name)


def _comparisons(temperature: int) -> tuple[str, ...]:
    """The comparisons of a temperature, which the bars are of; the first that has a method has it as it is tuned."""
    some = QUALITY[temperature], COMPARED[temperature], MORE[temperature]
    return (ISLANDS, *some, TWO_BEHIND) if temperature else some


def _has(records: Records, file: str, method: str) -> bool:
    """Whether a record is there and compares a method."""
    return file in records and any(row["method"] == method for row in records[file]["rows"])


def _used(records: Records, temperature: int, method: str, timed: bool) -> tuple[str, ...]:
    """Comparisons that a figure of a method is of: the first that has it, and those that have it at the same settings.

    timed: whether it is of times, which have to be of one processor. The distributions that pictures are drawn from do
    not depend on it, but for rounding.
    """
    some = [file for file in _comparisons(temperature) if _has(records, file, method)]
    if not some:
        return (QUALITY[temperature],)
    first, *others = some
    held = records[first]

    def fits(other: Row) -> bool:
        alike = other["settings"]["methods"].get(method) == held["settings"]["methods"].get(method)
        return alike and (not timed or other["machine"]["processor"] == held["machine"]["processor"])

    return first, *(file for file in others if fits(records[file]))


def _rows(records: Records, temperature: int, method: str, timed: bool) -> list[Row]:
    """A method's row of each comparison that `_used` names.

    NoFigureError unless they are of other prompts, and of the same models and guidance.
    """
    files = _used(records, temperature, method, timed)
    told = [record(records, file) for file in files]
    prompts = [prompt for one in told for prompt in one["settings"]["prompts"]]
    if len(set(prompts)) < len(prompts):
        raise NoFigureError(f"{' and '.join(files)} share prompts")
    opened = [one["model"]["sha256"] for one in told]
    shared = set.intersection(*map(set, opened))  # a comparison opens what its methods need
    for what, found in (
        ("models", [{name: one[name] for name in shared} for one in opened]),
        ("guidance", [one["settings"]["guidance"] for one in told]),
    ):
        if any(one != found[0] for one in found):
            raise NoFigureError(f"{' and '.join(files)} are of different {what}")
    if any(len(one["settings"]["seeds"]) > 1 for one in told):
        raise NoFigureError(f"{' and '.join(files)} are of several seeds")
    return [pick(records, file, method=method) for file in files]


def _of_all(temperature: int, method: str, name: str) -> Figured:
    """A figure of all pictures of the comparisons."""
    timed = name == "speedup"
    return lambda records: pooled(
        [(of_row(row, name), row["images"]) for row in _rows(records, temperature, method, timed)], timed
    )


def read_right(records: Records) -> Figure:
    """The share of plain AR's pictures at temperature 1 that the judge reads right."""
    rows = _rows(records, 1, "ar", timed=False)
    if any(row["prompt_accuracy"] is None for row in rows):
        raise NoFigureError("No judge read the pictures")
    return share_of(sum(row["images"] * row["prompt_accuracy"] for row in rows), sum(row["images"] for row in rows))


_ACCURACY: Final = Bar(
    "prompt accuracy of plain AR, at least 0.75",
    _comparisons(1),
    read_right,
    Sense.ABOVE,
    LEAST_ACCURACY,
    ".3f",
    used=partial(_used, temperature=1, method="ar", timed=False),
)


def _takes(method: str, temperature: int, least: float) -> Callable[[Records], str]:
    """How many tokens a cycle, or how few target passes, would make a method just so fast, at these records' costs."""

    def told(records: Records) -> str:
        rows = _rows(records, temperature, method, timed=True)

        def mean(name: str) -> float:
            return pooled([(Figure(row[name], None, None), row["images"]) for row in rows]).value

        speedup = _of_all(temperature, method, "speedup")(records).value
        if rows[0]["tokens_per_cycle"] is not None:
            kept = mean("tokens_per_cycle")
            return f"{kept * least / speedup:.2f} tokens a cycle at what one costs here; it draws {kept:.2f}"
        share, taken = mean("target_share"), mean("target_nfe")
        passes = taken * (share - 1 + speedup / least) / share
        if passes <= 0:
            return "not by fewer target passes: all else takes too long here"
        return f"{passes:.1f} target passes at what one costs here; it takes {taken:.1f}"

    return told


def _faster(method: str, temperature: int, least: float, where: str) -> Bar:
    asked = f"`{method}` at least {least:g} times as fast as AR, {where}"
    measure, takes = _of_all(temperature, method, "speedup"), _takes(method, temperature, least)
    used = partial(_used, temperature=temperature, method=method, timed=True)
    return Bar(asked, _comparisons(temperature), measure, Sense.ABOVE, least, takes=takes, used=used)


def _keeps(method: str, temperature: int, where: str) -> Bar:
    asked = f"`{method}` loses at most 0.02 of AR's prompt accuracy, {where}"
    measure = _of_all(temperature, method, "accuracy_over_ar")
    used = partial(_used, temperature=temperature, method=method, timed=False)
    return Bar(asked, _comparisons(temperature), measure, Sense.ABOVE, -0.02, "+.3f", used=used)


def _points_in_nats(records: Records) -> Figure:
    """The change of the judge's log-probability that goes with a loss of 0.02 of accuracy: below 0."""
    worth = record(records, DAMAGE).get("worth")
    if worth is None:
        raise NoFigureError(f"`{DAMAGE}` does not say what a loss of accuracy is worth")
    found = of_row(worth, "nats")
    return Figure(-found.value, *(None if one is None else -one for one in (found.high, found.low)))


def _keeps_log_probability(method: str, temperature: int, where: str) -> Bar:
    asked = f"`{method}` loses at most the judge's log-probability that 0.02 of accuracy is worth, {where}"
    measure = _of_all(temperature, method, "attribute_log_probability_over_ar")
    used = partial(_used, temperature=temperature, method=method, timed=False)
    return Bar(asked, _comparisons(temperature), measure, Sense.ABOVE, _points_in_nats, "+.3f", used=used)


def _method(method: str, temperature: int, least: float, where: str) -> tuple[Bar, ...]:
    """A method's bars of speed and of quality; quality by accuracy, and by the measure that needs fewer pictures."""
    quality = _keeps(method, temperature, where), _keeps_log_probability(method, temperature, where)
    return _faster(method, temperature, least, where), *quality


BARS: Final[tuple[Bar, ...]] = (
    *_premises(64),
    *_premises(128),
    _ACCURACY,
    *_method("adt+lantern", 0, 1.8, "128 px, temperature 0"),
    *_method("adt+lantern", 1, 1.5, "128 px, temperature 1"),
    *_method("mulo-islands", 1, 3.0, "128 px"),
)
FILES: Final = tuple(dict.fromkeys((TRAINED, DAMAGE, *(file for bar in BARS for file in bar.files))))


def bar_cells(records: Records) -> list[tuple[str, str, str, str, str]]:
    """A row for each bar: what was asked, what was measured, whether it is met, what would just do, the records."""
    rows = []
    for bar in BARS:
        try:
            told = (*bar.judged(records), bar.takes(records))
        except NoFigureError as error:
            told = ("", f"not measured: {error}", "")
        files = bar.files if bar.used is None or not records.keys() & {*bar.files} else bar.used(records)
        rows.append((bar.asked, *told, ", ".join(f"`{file}`" for file in files)))
    return rows

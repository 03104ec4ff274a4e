"""From a recorded interval to a verdict on a claim: the rule, and the figures that claims ask of records.

Records are what the files of benchmarks/results/ hold, by file name. Where a record lacks a figure, `NoFigureError`
says what is missing; where it has a figure and no interval, nothing can be told either.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from enum import StrEnum
from typing import Any, NamedTuple

Records = Mapping[str, Any]
Row = Mapping[str, Any]

_NORMAL = 1.96
"""Standard errors to either end of a 95 % interval."""
_POWERED = _NORMAL + 0.84
"""Standard errors of a difference that its 95 % interval leaves nought out of with a chance of 0.8."""
_MATCHED = 0.02
"""By how much the shares of the draft that two matched variants keep may differ: else quality may differ by that."""
WANTED = 0.05
"""The difference of accuracies that pictures needed are told for, and the loss that counts as none: 1 prompt in 20."""


class Verdict(StrEnum):
    """What a record says of a claim."""

    HOLDS = "holds"
    FAILS = "does not hold here"
    UNTOLD = "cannot be told"


class Sense(StrEnum):
    """What a claim says of its figure: that it lies above a bound, below it, or that a thing never happens."""

    ABOVE = "above"
    BELOW = "below"
    NEVER = "never"


class NoFigureError(LookupError):
    """A record has no such figure, or there is no such record; says which."""


class Figure(NamedTuple):
    """A figure and its 95 % interval (None: none recorded).

    both_ends: two intervals were divided or subtracted end by end, so it is wider than one of pairs would be.
    note: what else the record says of it. fair: whether what it compares differs in what the claim names alone.
    """

    value: float
    low: float | None
    high: float | None
    both_ends: bool = False
    note: str = ""
    fair: bool = True


class Counted(NamedTuple):
    """In how many of how many cases a thing happened that a claim says never happens."""

    found: int
    cases: int
    note: str = ""


Measure = Callable[[Records], Figure | Counted]
Figured = Callable[[Records], Figure]


def verdict(found: Figure | Counted, sense: Sense, bound: float = 0.0) -> Verdict:
    """Whether the whole interval agrees with the claim, contradicts it, or neither.

    A claim is strict: an interval that ends at the bound does not agree, and one that lies on the far side of it, the
    bound included, contradicts. One counter-example refutes what never happens. An unfair comparison tells nothing.
    """
    if isinstance(found, Counted):
        if found.cases < 1:
            return Verdict.UNTOLD
        return Verdict.FAILS if found.found else Verdict.HOLDS
    if sense is Sense.NEVER:
        raise ValueError("a claim that a thing never happens: expected a count, got a figure")
    if (
        not found.fair
        or found.low is None
        or found.high is None
        or not math.isfinite(found.low)
        or not math.isfinite(found.high)
    ):
        return Verdict.UNTOLD
    agrees, contradicts = (
        (found.low > bound, found.high <= bound) if sense is Sense.ABOVE else (found.high < bound, found.low >= bound)
    )
    return Verdict.HOLDS if agrees else Verdict.FAILS if contradicts else Verdict.UNTOLD


def beside_published(found: Figure | Counted, published: float | None) -> str:
    """Where the published figure lies outside the interval: which of the two is smaller."""
    if published is None or isinstance(found, Counted) or found.low is None or found.high is None:
        return ""
    return "less than published" if found.high < published else "more than published" if found.low > published else ""


def written(found: Figure | Counted, form: str = ".2f") -> str:
    """A figure as the page has it, with its interval."""
    if isinstance(found, Counted):
        return f"{found.found} of {found.cases}" + (
            "" if found.found or found.cases < 1 else f" (at most {100 * (1 - 0.05 ** (1 / found.cases)):.0f} %)"
        )
    if found.low is None or found.high is None:
        return format(found.value, form)
    ends = f"({found.low:{form}} to {found.high:{form}})"
    return f"{found.value:{form}} {ends}" + (", both ends" if found.both_ends else "")


def record(records: Records, file: str) -> Any:
    """The record of a file."""
    if file not in records:
        raise NoFigureError(f"There is no `{file}`")
    return records[file]


def pick(records: Records, file: str, **wanted: object) -> Row:
    """The one row of a record that has these values."""
    rows: list[Row] = [
        row for row in record(records, file)["rows"] if all(row.get(name) == value for name, value in wanted.items())
    ]
    if len(rows) != 1:
        named = ", ".join(f"{name} {value}" for name, value in wanted.items())
        raise NoFigureError(f"`{file}` has {'no row' if not rows else f'{len(rows)} rows'} of {named}")
    return rows[0]


def of_row(row: Row, name: str) -> Figure:
    """A figure of a row, with the interval that stands beside it; a row's one `value` has plain `low` and `high`."""
    if row.get(name) is None:
        raise NoFigureError(f"No `{name}` is recorded")
    low, high = ("low", "high") if name == "value" else (f"{name}_low", f"{name}_high")
    return Figure(row[name], row.get(low), row.get(high))


def share_of(hits: float, count: int) -> Figure:
    """hits / count of independent cases, with Wilson's interval (95 %)."""
    share, scale = hits / count, 1 + _NORMAL**2 / count
    middle = (share + _NORMAL**2 / (2 * count)) / scale
    half = _NORMAL * math.sqrt(share * (1 - share) / count + _NORMAL**2 / (4 * count**2)) / scale
    return Figure(share, middle - half, middle + half)


def pooled(found: Sequence[tuple[Figure, int]], logarithms: bool = False) -> Figure:
    """A figure of several independent sets of pictures, each with how many: their mean, weighed by those numbers.

    Either half of its interval is that of a mean of independent figures. logarithms: both are of the figures'
    logarithms, as of ratios.
    """
    to, back = (math.log, math.exp) if logarithms else (float, float)
    count = sum(pictures for _, pictures in found)
    middle = sum(to(one.value) * pictures for one, pictures in found) / count

    def half(ends: Sequence[float]) -> float:
        apart = ((to(one.value) - to(end)) * n / count for (one, n), end in zip(found, ends, strict=True))
        return math.hypot(*apart)

    low, high = ([one.low for one, _ in found], [one.high for one, _ in found])
    if None in low or None in high:
        return Figure(back(middle), None, None)
    return Figure(back(middle), back(middle - half(low)), back(middle + half(high)))


def inverse(one: Figure) -> Figure:
    """1 over a positive figure."""
    low, high = (None if one.high is None else 1 / one.high), (None if one.low is None else 1 / one.low)
    return one._replace(value=1 / one.value, low=low, high=high)


def quotient(one: Figure, other: Figure) -> Figure:
    """One positive figure over another, end by end."""
    value = one.value / other.value
    if one.low is None or one.high is None or other.low is None or other.high is None:
        return Figure(value, None, None)
    return Figure(value, one.low / other.high, one.high / other.low, both_ends=True)


def less(one: Figure, other: Figure) -> Figure:
    """One figure less another, end by end."""
    value = one.value - other.value
    if one.low is None or one.high is None or other.low is None or other.high is None:
        return Figure(value, None, None)
    return Figure(value, one.low - other.high, one.high - other.low, both_ends=True)


def figure(file: str, name: str, **wanted: object) -> Figured:
    """A figure of one row."""
    return lambda records: of_row(pick(records, file, **wanted), name)


def ratio(file: str, better: Row, worse: Row, name: str = "speedup") -> Figured:
    """The same figure of two rows, one over the other."""
    return lambda records: quotient(*(of_row(pick(records, file, **row), name) for row in (better, worse)))


def difference(file: str, one: Row, other: Row, name: str) -> Figured:
    """The same figure of two rows, one less the other."""
    return lambda records: less(*(of_row(pick(records, file, **row), name) for row in (one, other)))


def paired_speed(file: str, better: str, worse: str) -> Figured:
    """How many times faster one method is, by `benchmarks.paired_speed`.

    Picture by picture where the record is of one of the two; else by way of the method that it is of, end by end.
    """

    def measure(records: Records) -> Figure:
        of = record(records, file)["of"]
        if of == better:
            return of_row(pick(records, file, method=worse), "faster")
        if of == worse:
            return inverse(of_row(pick(records, file, method=better), "faster"))
        return ratio(file, {"method": worse}, {"method": better}, "faster")(records)

    return measure


def ordering(file: str, better: str, worse: str, name: str = "prompt_accuracy") -> Figured:
    """A difference that `benchmarks.mulo` recorded, and what would tell it. name: of the figure.

    Picture by picture, with a bootstrap interval; older records have accuracies with a standard error, as if unpaired.
    """

    def measure(records: Records) -> Figure:
        rows = {file: {"rows": record(records, file).get("orderings", [])}}
        one = pick(rows, file, figure=name, better=better, worse=worse)
        first, second = (pick(records, file, method=label) for label in (better, worse))
        images, paired = first["images"], "difference" in one
        value = one["difference"] if paired else one["found"][0] - one["found"][1]
        error = (one["high"] - one["low"]) / (2 * _NORMAL) if paired else one["standard_error"]
        low, high = (one["low"], one["high"]) if paired else (value - _NORMAL * error, value + _NORMAL * error)
        note = f"Standard error {error:.3f} with {images} pictures{', of pairs' if paired else ', as if unpaired'}"
        if name == "prompt_accuracy":
            needed = math.ceil(images * (_POWERED * error / WANTED) ** 2)
            note += f"; a difference of {WANTED:g} takes about {needed:,}"
        shares, fair = [row.get("kept_share") for row in (first, second)], True
        if "matched" in worse and None not in shares:
            fair = abs(shares[0] - shares[1]) <= _MATCHED
            note += f". Kept of the draft: {shares[0]:.0%} and {shares[1]:.0%}{'' if fair else ', which is no match'}"
        return Figure(value, low, high, note=f"{note}.", fair=fair)

    return measure


def mean_and_half(file: str, one: Row, other: Row, name: str) -> Figured:
    """A mean with half its interval, of one row less another's."""

    def read(records: Records, row: Row) -> Figure:
        held = pick(records, file, **row).get(name)
        if held is None:
            raise NoFigureError(f"No `{name}` is recorded")
        return Figure(held["mean"], held["mean"] - held["half"], held["mean"] + held["half"])

    return lambda records: less(read(records, one), read(records, other))

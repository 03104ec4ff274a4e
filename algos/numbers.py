"""Strict parsing of numbers that users type: ASCII digits, within stated bounds, nothing rounded to 0."""

from __future__ import annotations

import re
from typing import Final

MOST_WHOLE: Final = 2**63 - 1
"""The largest integer that is parsed; options and settings have narrower bounds."""
MOST_REAL: Final = 1e9
LEAST_REAL: Final = 1e-30
"""The size limits of real numbers other than 0: a smaller one would act as 0, a larger one as infinity."""
MOST_FACTOR: Final = 1e6
"""The largest factor on a probability; it accepts all draft tokens whose probability is not almost 0."""
_WHOLE: Final = re.compile(r"[+-]?[0-9]+")
_REAL: Final = re.compile(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?")


def whole_number(text: str, least: int = -MOST_WHOLE, most: int = MOST_WHOLE) -> int:
    """Parse `text` as an integer; raise ValueError, with the bounds, for anything else.

    Unlike Python's `int`, it rejects underscores and digits of other scripts.
    """
    literal = text.strip()
    digits = literal.lstrip("+-").lstrip("0")
    if _WHOLE.fullmatch(literal) and len(digits) <= len(str(MOST_WHOLE)) and least <= int(literal) <= most:
        return int(literal)
    raise ValueError(f"expected a whole number from {least:,} to {most:,}, in digits 0 to 9, got {text[:80]!r}")


def real_number(text: str) -> float:
    """Parse `text` as a real number; raise ValueError, with the bounds, for NaN, infinity or what would round to 0."""
    literal = text.strip()
    if _REAL.fullmatch(literal):
        value = float(literal)
        is_zero = not re.search("[1-9]", re.split("[eE]", literal)[0])
        if (is_zero and value == 0.0) or LEAST_REAL <= abs(value) <= MOST_REAL:
            return value
    raise ValueError(
        f"expected 0, or a number of size {LEAST_REAL:g} to {MOST_REAL:g}, in digits 0 to 9, got {text[:80]!r}"
    )

"""docs/certificates.md and its page of cases, made from benchmarks/results/certificates/*.json alone.

The pages of bugs beside them are written by hand. Their lines "The same in" name other verifiers with the same bug.
"""

import json
import re
from pathlib import Path
from typing import Any

from benchmarks.pages import render

ROOT = Path(__file__).resolve().parents[2]
RESULTS = ROOT / "benchmarks" / "results" / "certificates"
PAGE = ROOT / "docs" / "certificates.md"
PAGES = ROOT / "docs" / "certificates"
VERDICTS = ("lossless", "lossless but for a boundary", "biased", "relaxed", "faulty")


def pages() -> dict[Path, str]:
    """Return the texts of the page of certificates and the page of cases, by path."""
    rows = [json.loads(path.read_text(encoding="utf-8")) for path in sorted(RESULTS.glob("*.json"))]
    groups: dict[str, list[dict[str, Any]]] = {verdict: [] for verdict in VERDICTS}
    for row in rows:
        # Records keep the words of their time, when a known mistake was called a slip.
        row["report"] = [line.replace("known slip", "known mistake") for line in row["report"]]
        verdict = row["certificate"]["verdict"]
        groups["relaxed" if row["relaxed"] and verdict == "biased" else verdict].append(row)
    scripts = {path.stem for path in PAGES.glob("*.py")}
    page = render("certificates/page", rows=rows, groups=groups, page_of=pages_of_bugs(), scripts=scripts, size=largest)
    return {PAGE: page, PAGES / "cases.md": render("certificates/cases", rows=rows)}


def pages_of_bugs() -> dict[str, str]:
    """Return the page of each verifier's bug; a page is named after the first verifier that has the bug."""
    page_of = {}
    for path in sorted(PAGES.glob("*.md")):
        if path.name != "cases.md":
            same = re.search(r"\*\*The same in:\*\* (.*)", path.read_text(encoding="utf-8"))
            page_of |= dict.fromkeys((path.stem, *re.findall(r"([\w-]+) \(", same[1] if same else "")), path.stem)
    return page_of


def largest(row: dict[str, Any]) -> str:
    """Return the largest total variation of any case, including the smallest failing one."""
    certificate = row["certificate"]
    seen = [one["finding"]["total_variation"] for one in certificate["findings"] if one["kind"] == "biased"]
    most = max(certificate["largest"], *seen) if seen else certificate["largest"]
    how = " by samples" if "samples" in certificate["how"] else ""
    return (f"{most:.3g}" if most > 1e-3 else f"{most:.1e}" if most else "0") + how

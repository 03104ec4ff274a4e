"""docs/certificates.md and its pages, made from benchmarks/results/certificates/*.json alone."""

import json
from pathlib import Path
from typing import Any

from benchmarks.certificates.bugs import BUGS
from benchmarks.pages import render

ROOT = Path(__file__).resolve().parents[2]
RESULTS = ROOT / "benchmarks" / "results" / "certificates"
PAGE = ROOT / "docs" / "certificates.md"
PAGES = ROOT / "docs" / "certificates"
VERDICTS = ("lossless", "lossless but for a boundary", "biased", "relaxed", "faulty")


def pages() -> dict[Path, str]:
    """The page of certificates, the page of cases, and one for each bug: their paths and texts."""
    rows = [json.loads(path.read_text(encoding="utf-8")) for path in sorted(RESULTS.glob("*.json"))]
    by_name = {row["name"]: row for row in rows}
    groups: dict[str, list[dict[str, Any]]] = {verdict: [] for verdict in VERDICTS}
    for row in rows:
        verdict = row["certificate"]["verdict"]
        groups["relaxed" if row["relaxed"] and verdict == "biased" else verdict].append(row)
    shared = {"rows": rows, "scripts": {path.stem for path in PAGES.glob("*.py")}, "size": largest}
    page_of = {other: name for name, bug in BUGS.items() for other in (name, *bug.also)}
    made = {PAGE: render("certificates/page", groups=groups, page_of=page_of, **shared)}
    made[PAGES / "cases.md"] = render("certificates/cases", **shared)
    for name, bug in BUGS.items():
        if name in by_name:
            same = [by_name[other] for other in bug.also if other in by_name]
            made[PAGES / f"{name}.md"] = render("certificates/bug", bug=bug, row=by_name[name], same=same, **shared)
    return made


def largest(row: dict[str, Any]) -> str:
    """The largest total variation of any case, the smallest failing one included."""
    certificate = row["certificate"]
    seen = [one["finding"]["total_variation"] for one in certificate["findings"] if one["kind"] == "biased"]
    most = max(certificate["largest"], *seen) if seen else certificate["largest"]
    how = " by samples" if "samples" in certificate["how"] else ""
    return (f"{most:.3g}" if most > 1e-3 else f"{most:.1e}" if most else "0") + how

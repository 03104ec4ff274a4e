"""docs/certificates.md, made from benchmarks/results/certificates/*.json alone."""

import json
from pathlib import Path
from typing import Any

from benchmarks.pages import markdown_table

ROOT = Path(__file__).resolve().parents[2]
RESULTS = ROOT / "benchmarks" / "results" / "certificates"
PAGE = ROOT / "docs" / "certificates.md"
PAGES = ROOT / "docs" / "certificates"
ORDER = ("lossless", "lossless but for a boundary", "biased", "faulty")
HEAD = """<!-- Made by `python -m benchmarks.certificates`; do not edit. -->
# Certificates of public verifiers

Every verifier below was judged by [`underpaint certify`](how-to/certify-a-verifier.md) on small cases, drafts included.
A verdict holds for the version and the function that the table names, on the cases that were judged. Our adapters call
the project's own code: [`benchmarks/certificates/`](../benchmarks/certificates/trees.py). No code of theirs is here.

    python -m benchmarks.certificates --sources DIR   # DIR: clones in folders "owner+name"

"""
ABOUT = {
    "lossless": "The target's distribution on every case.",
    "lossless but for a boundary": "The target's distribution to rounding. A uniform of exactly 0 keeps a token of "
    "target probability 0: a comparison with `<=` where `<` is meant. In float32 that is once in 2^24 draws.",
    "biased": "Meant to be lossless, and another distribution than the target's on some case.",
    "relaxed": "Not meant to be lossless. The total variation is the largest of the cases, so no bound.",
    "faulty": "It raised, or returned what the draft tree does not have, on some case.",
}


def page() -> str:
    """The page."""
    rows = [json.loads(path.read_text(encoding="utf-8")) for path in sorted(RESULTS.glob("*.json"))]
    parts = [HEAD]
    for verdict, about in ABOUT.items():
        kept = [row for row in rows if _group(row) == verdict]
        if not kept:
            continue
        title = "Relaxed by design" if verdict == "relaxed" else verdict.capitalize()
        headings = ["verifier", "version", "what was judged", "cases", "failing", "largest total variation"]
        parts += [f"## {title}\n\n{about}\n\n", markdown_table(headings, map(_row, kept)), "\n\n"]
    return "".join(parts).rstrip() + "\n"


def _group(row: dict[str, Any]) -> str:
    verdict: str = row["certificate"]["verdict"]
    return "relaxed" if row["relaxed"] and verdict == "biased" else verdict


def _row(row: dict[str, Any]) -> list[str]:
    found = row["certificate"]
    failing = ", ".join(f"{one['count']} {one['kind']}" for one in found["findings"]) or "none"
    name = f"[{row['name']}](certificates/{row['name']}.md)" if (PAGES / f"{row['name']}.md").is_file() else row["name"]
    how = " by samples" if "samples" in found["how"] else ""
    size = f"{found['largest']:.3g}" if found["largest"] > 1e-3 else f"{found['largest']:.1e}"
    judged = row["judged"] + (f": {row['relaxed']}" if row["relaxed"] else "")
    link = f"{name}, [{row['project']}](https://github.com/{row['project']})"
    return [link, f"`{row['version']}`", judged, str(found["cases"]), failing, f"{size}{how}"]

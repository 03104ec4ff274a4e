"""docs/certificates.md, made from benchmarks/results/certificates/*.json alone."""

import json
from pathlib import Path
from typing import Any

from benchmarks.certificates.bugs import BUGS, Bug
from underpaint.runtime.protocol.tables import markdown

ROOT = Path(__file__).resolve().parents[2]
RESULTS = ROOT / "benchmarks" / "results" / "certificates"
PAGE = ROOT / "docs" / "certificates.md"
PAGES = ROOT / "docs" / "certificates"
CASES = PAGES / "cases.md"
HEAD = """<!-- Made by `python -m benchmarks.certificates`; do not edit. -->
# Certificates of public verifiers

[`underpaint certify`](how-to/certify-a-verifier.md) judged {judged} verifiers of public projects on small cases.
Of these, {wrong} are biased or faulty. A verdict holds for the version and the function that the table names, on the
judged cases. The largest total variation includes the smallest failing case, which is judged after the others.

[Adapters](../benchmarks/certificates/table.py) call the projects' own code, none of which is copied here. The last
column links to the smallest case of each finding, and to a script that shows it. The script needs a clone, PyTorch and
NumPy.

<!-- parsed, not run: needs the projects' own code -->

    python -m benchmarks.certificates --sources DIR   # DIR: clones in folders "owner+name"

"""
LEFT_OUT = """## Not judged

- [ZipAR](https://github.com/ThisisBillhe/ZipAR) at `2a5695c`: the public code has windows of fixed size, and no test of
  drafts.
- [diffusers](https://github.com/huggingface/diffusers) at `58eb52c`: no module verifies drafts.
- [llama.cpp](https://github.com/ggml-org/llama.cpp) is C++. Its Python binding, which verifies in Python, is judged.

TensorRT-LLM's functions and FlashInfer's kernel were copied by hand from the text of their repositories, as their rows
say. So their arithmetic was judged, not their build. vLLM, SGLang and transformers are the released packages.
"""
ABOUT = {
    "lossless": "The target's distribution on every case. Figures by samples differ from 0 by chance.",
    "lossless but for a boundary": "The target's distribution up to rounding. But a uniform of exactly 0 accepts a "
    "token of target probability 0, because of `<=` instead of `<`. In float32 that happens once in 2^24 draws.",
    "biased": "Meant to be lossless, but the distribution differs from the target's in some case.",
    "relaxed": "Not meant to be lossless. The total variation is the largest among the judged cases, not a bound.",
    "faulty": "It raised an exception, or returned a path that the draft tree does not have, in some case.",
}


def pages() -> dict[Path, str]:
    """The page of certificates, and one for each bug: their paths and texts."""
    rows = [json.loads(path.read_text(encoding="utf-8")) for path in sorted(RESULTS.glob("*.json"))]
    by_name = {row["name"]: row for row in rows}
    found = {PAGES / f"{name}.md": _bug_page(bug, by_name, name) for name, bug in BUGS.items() if name in by_name}
    return {PAGE: _page(rows), CASES: _cases(rows), **found}


def _cases(rows: list[dict[str, Any]]) -> str:
    """Every certificate's report, the smallest cases in it."""
    parts = [
        "---\norphan: true\n---",
        "<!-- Made by `python -m benchmarks.certificates`; do not edit. -->",
        "# The smallest case of each certificate",
        "Each report says how many cases were judged, and shows the smallest case of each kind of finding.",
    ]
    for row in rows:
        report = "\n".join(f"    {line}" for line in row["report"])
        parts += [f"## {row['name']}", f"{row['project']} at `{row['version']}`, {row['judged']}.", report]
    return "\n\n".join(parts) + "\n"


def _bug_page(bug: Bug, rows: dict[str, dict[str, Any]], name: str) -> str:
    row = rows[name]
    report = "\n".join(f"    {line}" for line in row["report"])
    also = [f"{other} ({_size(rows[other])})" for other in bug.also if other in rows]
    parts = [
        "---\norphan: true\n---",  # linked from the table alone
        "<!-- Made by `python -m benchmarks.certificates`; do not edit. -->",
        f"# {bug.title}",
        f"[{row['project']}](https://github.com/{row['project']}) at `{row['version']}`, {row['judged']}.",
        bug.about,
        f"**Where:** {bug.place}.",
        f"**Expected:** {bug.expected}",
        *([f"**The same in:** {', '.join(also)}."] if also else []),
        "## Numbers and the smallest case",
        report,
        "## Again",
        "With a clone of the project in `DIR`, in a folder named `owner+name`:",
        f"<!-- parsed, not run: needs the projects' own code -->\n\n    {row['command']}",
        *([f"Or with [a script]({name}.py) of the smallest case alone."] if (PAGES / f"{name}.py").is_file() else []),
    ]
    return "\n\n".join(parts) + "\n"


def _page(rows: list[dict[str, Any]]) -> str:
    wrong = sum(_group(row) in ("biased", "faulty") for row in rows)
    parts = [HEAD.format(judged=len(rows), wrong=wrong)]
    for verdict, about in ABOUT.items():
        kept = [row for row in rows if _group(row) == verdict]
        if not kept:
            continue
        title = "Relaxed by design" if verdict == "relaxed" else verdict.capitalize()
        headings = ["verifier", "version", "what was judged", "cases", "failing", "largest total variation", "again"]
        parts += [f"## {title}\n\n{about}\n\n", markdown(headings, map(_row, kept)), "\n\n"]
    return "".join(parts) + LEFT_OUT


def _group(row: dict[str, Any]) -> str:
    verdict: str = row["certificate"]["verdict"]
    return "relaxed" if row["relaxed"] and verdict == "biased" else verdict


def _row(row: dict[str, Any]) -> list[str]:
    found = row["certificate"]
    failing = ", ".join(f"{one['count']} {one['kind']}" for one in found["findings"]) or "none"
    page_of = {other: name for name, bug in BUGS.items() for other in (name, *bug.also)}
    name = row["name"]
    if name in page_of:
        name = f"[{name}](certificates/{page_of[name]}.md)"
    judged = row["judged"] + (f": {row['relaxed']}" if row["relaxed"] else "")
    link = f"{name}, [{row['project']}](https://github.com/{row['project']})"
    again = [f"[case](certificates/cases.md#{row['name']})"]
    if (PAGES / f"{row['name']}.py").is_file():
        again.append(f"[script](certificates/{row['name']}.py)")
    return [link, f"`{row['version']}`", judged, str(found["cases"]), failing, _size(row), ", ".join(again)]


def _size(row: dict[str, Any]) -> str:
    """The largest total variation of any case, the smallest failing one included."""
    found = row["certificate"]
    seen = [one["finding"]["total_variation"] for one in found["findings"] if one["kind"] == "biased"]
    largest = max(found["largest"], *seen) if seen else found["largest"]
    how = " by samples" if "samples" in found["how"] else ""
    return (f"{largest:.3g}" if largest > 1e-3 else f"{largest:.1e}" if largest else "0") + how

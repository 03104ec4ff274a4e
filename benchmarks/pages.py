"""The pages of docs/results/, made from benchmarks/results/*.json alone.

Run: python -m benchmarks.pages [--check]

Every figure of a page comes from a file that holds its command, its machine and its settings. `--check` writes nothing
and ends with code 1 where a page on disk is not the one that the files make.
"""

import argparse
import json
import sys
import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.claims import CLAIMS, claims_page
from benchmarks.page_columns import PROTOCOL, README_COLUMNS, Column, Section
from benchmarks.page_tables import README_FILE, SECTIONS, TITLES
from benchmarks.validation import FILE as CLOSED_FORMS
from benchmarks.validation import PREDICTIONS, validation_page
from underpaint.artifacts.manifest import write_beside
from underpaint.artifacts.results import read_results
from underpaint.runtime.protocol.tables import best_rows, markdown, run_at, runs_of, summary

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "benchmarks" / "results"
PAGES = ROOT / "docs" / "results"
README = ROOT / "README.md"
README_METHODS = ("ar", "eagle2", "adt", "jacobi-lookup", "lantern", "adt+lantern", "zipar", "mulo-islands")
README_ROWS = 8
PROTOCOL_FILE = "protocol-1.json"
"""The record that README's table shows; until it is there, README has the comparison's table."""
PROTOCOLS = {PROTOCOL_FILE: "", "protocol-1-recent.json": ", the rules of 2025 and 2026"}
"""Records of `underpaint protocol` on the shipped models, and what headings say of their methods."""
RULES_FILE = "recent-rules.json"
README_BEGIN, README_END = "<!-- made by `python -m benchmarks.pages` -->", "<!-- end -->"
_COMMAND_LETTERS = 108
CLAIMS_TITLE = "The papers' claims, one by one"
VALIDATION_TITLE = "How far to trust a prediction"
PROTOCOL_TITLE = "Protocol 1: every method at both presets"
PROTOCOL_WORDS = (
    "Every method on the same prompts, with its tuned settings and with its paper's, marked `(paper)`. Speed-ups are "
    "over plain autoregression (`ar`), picture by picture. *Equal to AR at temperature 0* counts the pictures with "
    "exactly AR's tokens. Quality is the log-probability that a small classifier, the judge, gives to what the prompt "
    "says, minus the same of AR's picture. The column *pictures* counts what was drawn within the time limit.\n\n"
    "A lossless method draws from the target's own distribution. A bounded one has a rule that bounds the total "
    "variation at every node. The last column is the total variation of whole images by [exact enumeration](rules.md): "
    "two tokens, chains of two and three drafts, at the settings named there.\n\n"
    "**The first record is rough.** Other programs ran on the machine at times, it seems mostly at temperature 1: "
    "draft trees gain less there than [predicted](validation.md). The rules of 2025 and 2026 were drawn on a quiet "
    "machine. Compare rows within a record only."
)
WHOLE_PAGES = {"protocol": PROTOCOL_TITLE, "claims": CLAIMS_TITLE, "validation": VALIDATION_TITLE}
ABOUT = {
    "protocol": "all methods on the same prompts",
    "claims": "what LANTERN, ADT-Tree and MuLo-SD claim, with a measured figure and a verdict for each",
    "validation": "errors of the simulator against closed forms, authors' code, papers and measurements",
    "textured": "speed, quality, ablations and costs of the shipped models",
    "roofline": "the policy `roofline` against tuned rivals, on synthetic models",
    "simulator": "predictions against measurements, and predicted speed-ups on an A100 and an H200",
    "exactness": "whether `certify` catches known mistakes",
    "rules": "recent acceptance rules against the best that any lossless rule can do",
    "costs": "export and decoding of LlamaGen-B on a CPU",
    "engines": "bytes and build seconds of TensorRT engines, before and after they left out the weights",
    "live": "models of `transformers`, family by family",
    "server": "throughput, latency and faults of `underpaint serve`",
    "device": "decoding cycles on a GPU",
}
"""What each page shows, in the index."""
INTRODUCTIONS = {
    "textured": "Every recorded table of the shipped models, in the models' own sampling: no guidance, all codes. "
    "[What the results say](../explanation/what-the-results-say.md) explains them. "
    "[The tutorial](../tutorial/first-hour.md#2-compare) explains the columns. *Host share* is the share of the time "
    "outside the models, and *bias of a token* the total variation of its distribution from the target's. Differences "
    "from AR are paired by prompt and seed.",
}
NOTE = "<!-- Made by `python -m benchmarks.pages`; do not edit. -->"


def read_result(name: str) -> dict[str, Any]:
    """A result file, a comparison or a sweep as the schema says; a bare list of rows becomes {"rows": rows}."""
    found = json.loads((RESULTS / name).read_text(encoding="utf-8"))
    if isinstance(found, dict) and {"model", "settings"} <= found.keys():
        return read_results(RESULTS / name)
    return found if isinstance(found, dict) else {"rows": found}


def conditions(result: Mapping[str, Any], *, planned: bool = False) -> list[str]:
    """What a reader has to know before the figures: sampling that cuts or guides, prompts, model, machine, command.

    Args:
        result: The record.
        planned: Whether its prompts were planned only, as a record of the protocol is that ran out of time.
    """
    found = []
    settings = result.get("settings")
    if settings is not None:
        top_k = settings["top_k"] or "all codes"
        sampling = f"guidance {settings['guidance']:g}, top-k {top_k}, top-p {settings['top_p']:g}"
        if (settings["guidance"], settings["top_k"], settings["top_p"]) != (1, 0, 1):
            found.append(f"Sampling: temperature {settings['temperature']:g}, {sampling}.")
        count = len(settings["prompts"]) * len(settings["seeds"])
        preset = settings.get("preset")
        alone = result.get("kind") == "premises"
        if not planned:
            each = "" if alone else " a method"
            found.append(f"Pictures: {count}{each}" + (f"; preset `{preset}`." if preset else "."))
    model = result.get("model")
    if isinstance(model, Mapping) and "engine" in model:
        found.append(f"Model: {model.get('target', 'target')}, {model['engine']}.")
    machine = result.get("machine")
    if machine is not None:
        engine = f", ONNX Runtime {machine['onnxruntime']}" if "onnxruntime" in machine else ""
        found.append(f"Machine: {machine['cores']} cores of {machine['processor']}{engine}.")
    if "compared" in result:
        found.append(f"Comparison: `{result['compared']['command']}`")
    if "command" in result:
        found.append(f"Command: `{result['command']}`")
    return found


def render_section(section: Section) -> str:
    """One section: its heading, the conditions, the table."""
    result = read_result(section.file)
    rows = list(section.rows(result))
    parts = [f"## {section.heading}", *([section.words] if section.words else [])]
    parts.append("\n".join(f"- {line}" for line in [*conditions(result), f"File: `{section.file}`"]))
    columns = [(name, [cell(row) for row in rows]) for name, cell in section.columns]
    told = [(name, cells) for name, cells in columns if any(cells) or not rows]  # an older record lacks some figures
    table = markdown([name for name, _ in told], zip(*(cells for _, cells in told), strict=True))
    return "\n\n".join([*parts, table])


def render_claims() -> str:
    """The page of claims."""
    records = {file: read_result(file) for file in dict.fromkeys(claim.file for claim in CLAIMS)}
    return "\n\n".join([NOTE, f"# {CLAIMS_TITLE}", *claims_page(records, markdown)]) + "\n"


def render_validation() -> str:
    """The page of the simulator's errors."""
    files = [file for file in (CLOSED_FORMS, *PREDICTIONS) if (RESULTS / file).is_file()]
    parts = validation_page({file: read_result(file) for file in files}, markdown)
    return "\n\n".join([NOTE, f"# {VALIDATION_TITLE}", *parts]) + "\n"


def render_pages() -> dict[str, str]:
    """Every page by file name; none where nothing is recorded for it."""
    pages = {"claims.md": render_claims(), "validation.md": render_validation()}
    if (RESULTS / PROTOCOL_FILE).is_file():
        pages["protocol.md"] = render_protocol()
    for name, title in TITLES.items():
        sections = [section for section in SECTIONS if section.page == name and (RESULTS / section.file).is_file()]
        if not sections:
            continue
        intro = [INTRODUCTIONS[name]] if name in INTRODUCTIONS else []
        body = "\n\n".join([NOTE, f"# {title}", *intro, *(render_section(section) for section in sections)])
        pages[f"{name}.md"] = body + "\n"
    rows = [
        (f"[{title}]({name}.md)", ABOUT[name], str(pages[f"{name}.md"].count("\n|---|")))
        for name, title in {**WHOLE_PAGES, **TITLES}.items()
        if f"{name}.md" in pages
    ]
    words = (
        "These pages show every recorded figure. They are made from the files in `benchmarks/results/`. Each table "
        "names its file, its command and its machine. Speed-ups depend on the machine."
    )
    index = markdown(("Page", "What it shows", "Tables"), rows)
    pages["index.md"] = "\n\n".join([NOTE, "# Results", words, index]) + "\n"
    return pages


def render_protocol() -> str:
    """The page of protocol 1: of each record, the table of each temperature and what was drawn."""
    biases = exact_biases()
    columns: tuple[Column, ...] = (
        *PROTOCOL,
        ("pictures", lambda row: str(row["images"])),
        ("exact bias of the rule", lambda row: "" if row["promise"] == "lossless" else biases.get(row["rule"], "")),
    )
    parts = [NOTE, f"# {PROTOCOL_TITLE}", PROTOCOL_WORDS]
    for file, subject in PROTOCOLS.items():
        if not (RESULTS / file).is_file():
            continue
        record = read_results(RESULTS / file)
        for run in runs_of(record):
            drawn, planned = run["protocol"]["drawn"], run["protocol"]["planned"]
            told = [*conditions(run, planned=True), f"Drawn at both temperatures: {drawn:,} of {planned:,} pictures."]
            told += [f"Left out: {label}: {why}" for label, why in run["protocol"]["left_out"].items()]
            heading = f"## Temperature {run['settings']['temperature']:g}{subject}"
            parts += [heading, "\n".join(f"- {line}" for line in told), _table(columns, summary(record, run))]
    return "\n\n".join(parts) + "\n"


def exact_biases() -> dict[str, str]:
    """By rule, the total variation of whole images that was enumerated for it on small chains, as "0.039 to 0.111"."""
    found = dict[str, list[float]]()
    for row in read_result(RULES_FILE)["rows"]:
        if row["total_variation"] > 0.0:
            found.setdefault(row["rule"], []).append(row["total_variation"])
    return {rule: f"{min(values):.3f} to {max(values):.3f}" for rule, values in found.items()}


def _table(columns: Sequence[Column], rows: Sequence[Mapping[str, Any]]) -> str:
    return markdown([heading for heading, _ in columns], [[cell(row) for _, cell in columns] for row in rows])


def render_readme(text: str) -> str:
    """README.md with its table updated: the best rows of the protocol's record, or `README_METHODS` without one."""
    file = PROTOCOL_FILE if (RESULTS / PROTOCOL_FILE).is_file() else README_FILE
    record = read_result(file)
    result = record if file == README_FILE else run_at(record, 1.0)
    if result is None:
        raise SystemExit(f"{file}: expected a comparison at temperature 1; run `underpaint protocol` to its end")
    settings, machine = result["settings"], result["machine"]
    if file == README_FILE:
        known = {row["method"]: row for row in result["rows"]}
        columns, rows = README_COLUMNS, [known[name] for name in README_METHODS]
    else:
        columns, rows = PROTOCOL, best_rows(record, result, README_ROWS)
    least, most = (choose(row["images"] for row in rows) for choose in (min, max))
    kept, codes = settings["top_k"], f"{settings['vocab_size']:,} codes"
    words = (
        f"The fastest methods whose pictures are not significantly worse than plain autoregression's (`ar`), on "
        f"{machine['cores']} cores of {machine['processor']}: {settings['resolution']} px, temperature "
        f"{settings['temperature']:g}, {f'the {kept:,} likeliest of' if kept else 'all'} {codes}, "
        f"{most if least == most else f'{least} to {most}'} pictures for each method. Quality is a small "
        "classifier's log-probability of what the prompt says."
    )
    begin, rest = text.split(README_BEGIN)
    end = rest.split(README_END)[1]
    lines = textwrap.wrap(result["command"], _COMMAND_LETTERS, break_long_words=False, break_on_hyphens=False)
    command = " \\\n        ".join(lines)
    why = f"<!-- parsed, not run: minutes of measuring, recorded in benchmarks/results/{file} -->"
    return f"{begin}{README_BEGIN}\n\n{words}\n\n{_table(columns, rows)}\n\n{why}\n\n    {command}\n\n{README_END}{end}"


def main(arguments: list[str] | None = None) -> int:
    """Write the pages, or compare them."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.pages", description=__doc__)
    parser.add_argument("--check", action="store_true", help="write nothing; code 1 where a page is out of date")
    asked = parser.parse_args(arguments)
    pages = render_pages()
    readme = README.read_text(encoding="utf-8")
    if not asked.check:
        for name, text in pages.items():
            write_beside(PAGES / name, text.encode())
        write_beside(README, render_readme(readme).encode())
        print(f"{len(pages)} pages in {PAGES.relative_to(ROOT)}")
        return 0
    stale = [
        name
        for name, text in pages.items()
        if not (PAGES / name).is_file() or (PAGES / name).read_text(encoding="utf-8") != text
    ]
    stale += [path.name for path in PAGES.glob("*.md") if path.name not in pages]
    stale += [README.name] if render_readme(readme) != readme else []
    if stale:
        print(f"out of date: {', '.join(sorted(stale))}; run python -m benchmarks.pages", file=sys.stderr)
    return 1 if stale else 0


if __name__ == "__main__":
    sys.exit(main())

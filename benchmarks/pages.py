"""The pages of docs/results/, made from benchmarks/results/*.json alone.

Run: python -m benchmarks.pages [--check]

Every figure of a page comes from a file that holds its command, its machine and its settings. `--check` writes nothing
and ends with code 1 where a page on disk is not the one that the files make.
"""

import argparse
import json
import sys
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.claim_parts import Judged
from benchmarks.claims import CLAIMS, PAPERS, RULE, introduction, tallied
from benchmarks.claims_textured import TEXTURED_PAPERS, textured_introduction
from benchmarks.page_cells import Section
from benchmarks.page_columns import README_COLUMNS
from benchmarks.page_tables import SECTIONS
from benchmarks.shipped import NO_MORE, NOTICE, beside, ships
from benchmarks.textured_bars import COMPARED as TEXTURED_COMPARED
from benchmarks.textured_bars import FILES as TEXTURED_FILES
from benchmarks.textured_bars import bar_cells
from benchmarks.textured_progress import how_far
from benchmarks.textured_tables import BAR_COLUMNS, BARS_RULE, TEXTURED_PAGE
from benchmarks.verdicts import Records
from underpaint.artifacts.manifest import write_beside
from underpaint.artifacts.results import read_results

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "benchmarks" / "results"
PAGES = ROOT / "docs" / "results"
README = ROOT / "README.md"
README_FILE = TEXTURED_COMPARED[1]
README_METHODS = ("ar", "eagle2", "adt", "jacobi-lookup", "lantern", "adt+lantern", "zipar", "mulo-islands")
README_BEGIN, README_END = "<!-- made by `python -m benchmarks.pages` -->", "<!-- end -->"
_COMMAND_LETTERS = 108
CLAIMS_TITLE = "The papers' claims, one by one"
CLAIM_COLUMNS = ("claim", "published", "measured here (95 %)", "verdict", "record and command", "remark")
NOTE = "<!-- Made by `python -m benchmarks.pages`; do not edit. -->"
TITLES = {
    "comparison": "Methods beside each other",
    "frontier": "Speed against bias and against quality",
    "premises": "What the papers take for granted",
    "quality": "What measures of quality can tell",
    "mulo-sd": "MuLo-SD and ZipAR",
    "roofline": "`roofline` in simulation",
    "simulator": "The simulator against the engine",
    "relaxed": "What a unit of bias buys",
    "exactness": "Distributions and verification on the engine",
    "settings": "Settings one at a time",
    "costs": "What passes and decisions cost",
    "invariance": "Passes of any size beside passes of one token",
    "device": "The whole cycle on a GPU, predicted",
    TEXTURED_PAGE: "TexturedScenes: models in the papers' regime",
}


def read_result(name: str) -> dict[str, Any]:
    """A result file, a comparison or a sweep as the schema says; a bare list of rows becomes {"rows": rows}."""
    found = json.loads((RESULTS / name).read_text(encoding="utf-8"))
    if isinstance(found, dict) and {"model", "settings"} <= found.keys():
        return read_results(RESULTS / name)
    return found if isinstance(found, dict) else {"rows": found}


def markdown_table(headings: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table in GitHub's Markdown."""
    lines = ["| " + " | ".join(headings) + " |", "|" + "---|" * len(headings)]
    return "\n".join([*lines, *("| " + " | ".join(cells) + " |" for cells in rows)])


def conditions(result: Mapping[str, Any]) -> list[str]:
    """What a reader has to know before the figures: sampling, prompts, model, machine, command."""
    found = []
    settings, sampler = result.get("settings"), result.get("sampler")
    if settings is not None:
        top_k = settings["top_k"] or "all codes"
        sampling = f"guidance {settings['guidance']:g}, top-k {top_k}, top-p {settings['top_p']:g}"
        found.append(f"Sampling: temperature {settings['temperature']:g}, {sampling}.")
        count = len(settings["prompts"]) * len(settings["seeds"])
        preset = settings.get("preset")
        alone = result.get("kind") == "premises"
        found.append(
            f"Pictures: {count}" + ("" if alone else " a method") + (f"; preset `{preset}`." if preset else ".")
        )
    elif sampler is not None:
        found.append(f"Sampling: top-k {sampler['top_k'] or 'all codes'}, top-p {sampler['top_p']:g}.")
    if "replays" in result:
        found.append(f"Pictures: {result['pictures']} a method; bias on {result['replays']} of them.")
    model = result.get("model")
    if isinstance(model, Mapping) and "engine" in model:
        found.append(f"Model: {model.get('target', 'target')}, {model['engine']}.")
    machine = result.get("machine")
    if machine is not None:
        engine = f", ONNX Runtime {machine['onnxruntime']}" if "onnxruntime" in machine else ""
        found.append(f"Machine: {machine['cores']} cores of {machine['processor']}{engine}.")
    if "compared" in result:
        found.append(f"Compared by: `{result['compared']['command']}`")
    if "command" in result:
        found.append(f"Command: `{result['command']}`")
    return found


def render_section(section: Section) -> str:
    """One section: its heading, the conditions, the table."""
    result = read_result(section.file)
    rows = list(section.rows(result))
    parts = [f"## {section.heading}", *_notice(result), *([section.words] if section.words else [])]
    parts.append("\n".join(f"- {line}" for line in [*conditions(result), f"File: `{section.file}`"]))
    columns = [(name, [cell(row) for row in rows]) for name, cell in section.columns]
    told = [(name, cells) for name, cells in columns if any(cells) or not rows]  # an older record lacks some figures
    table = markdown_table([name for name, _ in told], zip(*(cells for _, cells in told), strict=True))
    return "\n\n".join([*parts, table])


def _notice(result: Mapping[str, Any]) -> list[str]:
    if ships(result) is False:
        return [NOTICE]
    more = beside(result)
    return [f"With a model that does not ship: {more}."] if more else []


def present_records(files: Iterable[str]) -> Records:
    """Those of the files that there are, by name."""
    return {file: read_result(file) for file in files if (RESULTS / file).is_file()}


def claim_records() -> Records:
    """What is recorded of what the claims ask for, by file name."""
    return present_records(dict.fromkeys(file for claim in CLAIMS for file in claim.files))


def render_bars(records: Records) -> list[str]:
    """What the models of TexturedScenes were to show, beside what they do."""
    return [*filter(None, [how_far(records)]), BARS_RULE, markdown_table(BAR_COLUMNS, bar_cells(records))]


def render_claims(records: Records) -> str:
    """The page of claims: a table for each paper, and every record that they read, with its command."""
    judged = {claim: claim.judge(records) for claim in CLAIMS}

    def read(file: str) -> str:
        known = f"[`{file}`](#{file.replace('.', '')})" if file in records else f"`{file}`"
        result = records.get(file, {})
        if ships(result) is False:
            return f"{known}, {NO_MORE}"
        return f"{known}, with a model that does not ship" if beside(result) else known

    def verdict(found: Judged) -> str:
        return f"**{found.verdict}**" + (f"; {found.beside}" if found.beside else "")

    emoji, textured = (
        [found for one, found in judged.items() if (one.paper in TEXTURED_PAPERS) == wanted] for wanted in (False, True)
    )
    counts = f"{tallied(emoji, 'EmojiScenes')} {tallied(textured, 'TexturedScenes')}"
    words = filter(None, (introduction(records), textured_introduction(records), RULE, counts))
    parts = [NOTE, f"# {CLAIMS_TITLE}", *words]
    for paper in PAPERS:
        rows = [
            (one.text, one.published, found.figure, verdict(found), ", ".join(map(read, one.files)), found.remark)
            for one, found in judged.items()
            if one.paper == paper
        ]
        parts += [f"## {paper}", markdown_table(CLAIM_COLUMNS, rows)]
    parts.append("## Records and commands")
    for file, result in sorted(records.items()):
        lines = [*conditions(result), *([] if "command" in result else ["Command: not recorded"])]
        parts += [f"### {file}", *_notice(result), "\n".join(f"- {line}" for line in lines)]
    return "\n\n".join(parts) + "\n"


def render_pages() -> dict[str, str]:
    """Every page by file name; none where nothing is recorded for it."""
    pages = {"claims.md": render_claims(claim_records())}
    for name, title in TITLES.items():
        sections = [section for section in SECTIONS if section.page == name and (RESULTS / section.file).is_file()]
        if not sections:
            continue
        first = render_bars(present_records(TEXTURED_FILES)) if name == TEXTURED_PAGE else []
        body = "\n\n".join([NOTE, f"# {title}", *first, *(render_section(section) for section in sections)])
        pages[f"{name}.md"] = body + "\n"
    rows = [
        (f"[{section.heading}]({section.page}.md)", f"`{section.file}`", *_models_and_processor(section.file))
        for section in SECTIONS
        if (RESULTS / section.file).is_file()
    ]
    words = (
        f"[{CLAIMS_TITLE}](claims.md): what the three papers say, and what was measured here.\n\n"
        "Each page is made from recorded files, each of which holds its command. Ratios differ by machine."
    )
    index = markdown_table(("What", "File", "Models", "Processor"), rows)
    pages["index.md"] = "\n\n".join([NOTE, "# Results", words, index]) + "\n"
    return pages


def render_readme(text: str) -> str:
    """README.md with its table made anew: `README_METHODS` of `README_FILE`, with its machine and command."""
    result = read_result(README_FILE)
    rows = {row["method"]: row for row in result["rows"]}
    settings, machine = result["settings"], result["machine"]
    count = len(settings["prompts"]) * len(settings["seeds"])
    kept, codes = settings["top_k"], f"{settings['vocab_size']:,} codes"
    words = (
        f"{settings['resolution']} px, temperature {settings['temperature']:g}, "
        f"{f'the {kept:,} likeliest of' if kept else 'all'} {codes}, {count} pictures a method, "
        f"{machine['cores']} cores of {machine['processor']}:"
    )
    cells = [[cell(rows[name]) for _, cell in README_COLUMNS] for name in README_METHODS]
    table = markdown_table([heading for heading, _ in README_COLUMNS], cells)
    begin, rest = text.split(README_BEGIN)
    end = rest.split(README_END)[1]
    lines = textwrap.wrap(result["command"], _COMMAND_LETTERS, break_long_words=False, break_on_hyphens=False)
    command = " \\\n        ".join(lines)
    why = f"<!-- parsed, not run: minutes of measuring, recorded in benchmarks/results/{README_FILE} -->"
    return f"{begin}{README_BEGIN}\n\n{words}\n\n{table}\n\n{why}\n\n    {command}\n\n{README_END}{end}"


def _models_and_processor(file: str) -> tuple[str, str]:
    result = read_result(file)
    models = {True: "beside the shipped" if beside(result) else "shipped", False: "ship no more", None: ""}
    return models[ships(result)], str(result.get("machine", {}).get("processor", "not recorded"))


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

"""Make the pages of docs/results/ and README's table from benchmarks/results/*.json alone.

Run: python -m benchmarks.pages [--check]

Each page has a template in benchmarks/templates/. Every figure of a page comes from a file that holds its command, its
machine and its settings. `--check` writes nothing and ends with code 1 where a page on disk is not the one that the
files make.
"""

import argparse
import json
import re
import sys
import textwrap
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import jinja2

from benchmarks.claims import CLAIMS
from benchmarks.validation import FILE as CLOSED_FORMS
from benchmarks.validation import PREDICTIONS, validation_figures
from underpaint.artifacts.manifest import write_beside
from underpaint.artifacts.results import read_results
from underpaint.runtime.evaluation.comparison import BASELINE
from underpaint.runtime.protocol.tables import interval, run_at, runs_of, summary

ROOT: Final = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "benchmarks" / "results"
PAGES = ROOT / "docs" / "results"
README = ROOT / "README.md"
README_ROWS: Final = 8
README_BEGIN, README_END = "<!-- made by `python -m benchmarks.pages` -->", "<!-- end -->"
PROTOCOL_FILE: Final = "protocol-1.json"
"""The record for README's table."""
RULES_FILE: Final = "recent-rules.json"
NOTE: Final = "<!-- Made by `python -m benchmarks.pages`; do not edit. -->"
LAST_WITH_ALL_SCRIPTS: Final = "8b010a0d"
"""The commit that has the script of every record. Later commits deleted the scripts of finished studies."""
ABOUT: Final = {
    "protocol": "all methods on the same prompts",
    "claims": "what LANTERN, ADT-Tree and MuLo-SD claim, with a measured figure and a verdict for each",
    "validation": "errors of the simulator against closed forms, authors' code, papers and measurements",
    "roofline": "the policy `roofline` against other methods, each tuned, on synthetic models",
    "simulator": "predictions against measurements, and predicted speedups on an A100 and an H200",
    "exactness": "whether `certify` catches known mistakes",
    "rules": "recent acceptance rules against the optimum of any lossless rule",
    "costs": "export and decoding of LlamaGen-B on a CPU",
    "engines": "size and build time of TensorRT engines, with and without weights inside",
    "live": "models of `transformers`, family by family",
    "server": "throughput, latency and faults of `underpaint serve`",
    "device": "predicted times of decoding cycles on a GPU",
    "textured": "speed, quality, ablations and costs of the shipped models",
}
"""The pages in the order of the index, and the content of each. Each has a template of the same name."""
_COMMAND_LETTERS: Final = 108


def read_result(name: str) -> dict[str, Any]:
    """Read a result file; a bare list of rows becomes {"rows": rows}."""
    values = json.loads((RESULTS / name).read_text(encoding="utf-8"))
    if isinstance(values, dict) and ({"model", "settings"} <= values.keys() or values.get("kind") == "merged"):
        return read_results(RESULTS / name)
    return values if isinstance(values, dict) else {"rows": values}


def conditions(result: Mapping[str, Any], *, planned: bool = False) -> dict[str, str]:
    """Return what a reader needs before the figures: unusual sampling, pictures, model, machine and command.

    Args:
        result: The record.
        planned: Whether its prompts were only planned, as in a record of a protocol that ran out of time.
    """
    values = {}
    settings = result.get("settings")
    if settings is not None:
        top_k = settings["top_k"] or "all codes"
        sampling = f"guidance {settings['guidance']:g}, top-k {top_k}, top-p {settings['top_p']:g}"
        if (settings["guidance"], settings["top_k"], settings["top_p"]) != (1, 0, 1):
            values["sampling"] = f"temperature {settings['temperature']:g}, {sampling}"
        count = len(settings["prompts"]) * len(settings["seeds"])
        preset = settings.get("preset")
        if not planned:
            each = "" if result.get("kind") == "premises" else " a method"
            values["pictures"] = f"{count}{each}" + (f"; preset `{preset}`" if preset else "")
    model = result.get("model")
    if isinstance(model, Mapping) and "engine" in model:
        values["model"] = f"{model.get('target', 'target')}, {model['engine']}"
    machine = result.get("machine")
    if machine is not None:
        engine = f", ONNX Runtime {machine['onnxruntime']}" if "onnxruntime" in machine else ""
        values["machine"] = f"{machine['cores']} cores of {machine['processor']}{engine}"
    if "compared" in result:
        values["comparison"] = f"`{result['compared']['command']}`"
    if "command" in result:
        values["command"] = f"`{result['command']}`{_where(result['command'])}"
    return values


def _where(command: str) -> str:
    """Return where to find the script of a command, if it was deleted."""
    script = re.match(r"python -m benchmarks\.(\w+)", command)
    if script is None or (ROOT / "benchmarks" / f"{script[1]}.py").is_file():
        return ""
    return f" (since deleted: `git show {LAST_WITH_ALL_SCRIPTS}:benchmarks/{script[1]}.py`)"


def about(name: str) -> str:
    """Return the conditions of a result file as a table, with the name of the file."""
    return condition_table({**conditions(read_result(name)), "file": f"`{name}`"})


def condition_table(values: Mapping[str, str]) -> str:
    """Return a table of conditions and their values."""
    return "\n".join(["| condition | value |", *(f"| {name} | {value} |" for name, value in values.items())])


def figure(value: Any, form: str = ".2f", unit: str = "") -> str:
    """Format a figure with its unit; empty if there is no figure."""
    return "" if value is None or isinstance(value, jinja2.Undefined) else format(value, form) + unit


def percent(value: Any, form: str = ".0f") -> str:
    """Format a share in percent; empty if there is no share."""
    return "" if value is None or isinstance(value, jinja2.Undefined) else f"{100 * value:{form}} %"


def grouped(value: float) -> str:
    """Format a number with commas between thousands; fractional numbers have four significant digits."""
    return f"{value:,.4g}" if isinstance(value, float) else f"{value:,}"


def times(estimate: tuple[float, float, float]) -> str:
    """Format a factor with its interval, given as (mean, low, high)."""
    mean, low, high = estimate
    return f"{mean:.2f}x ({low:.2f} to {high:.2f})"


def simulated_methods(result: Mapping[str, Any]) -> dict[tuple[str, str], dict[tuple[str, str], float]]:
    """Return the speedups by method and preset, then by machine and synthetic model."""
    table: dict[tuple[str, str], dict[tuple[str, str], float]] = {}
    for row in result["rows"]:
        table.setdefault((row["method"], row["preset"]), {})[row["machine"], row["model"]] = row["speedup"]
    return table


def exact_biases() -> dict[str, str]:
    """Return by rule the total variations of whole images, enumerated on small chains, as "0.039 to 0.111"."""
    biases = dict[str, list[float]]()
    for row in read_result(RULES_FILE)["rows"]:
        if row["total_variation"] > 0.0:
            biases.setdefault(row["rule"], []).append(row["total_variation"])
    return {rule: f"{min(values):.3f} to {max(values):.3f}" for rule, values in biases.items()}


def filled(text: str) -> str:
    """Return a table without the columns in which no row has a figure."""
    headings, *rows = (line[2:-2].split(" | ") for line in text.strip().splitlines())
    columns = [place for place in range(len(headings)) if any(row[place] for row in rows)]
    return "".join(f"| {' | '.join(row[place] for place in columns)} |\n" for row in (headings, *rows))


def render(template: str, **values: Any) -> str:
    """Fill in a template, and add the second line of each table, below its headings."""
    text = _TEMPLATES.get_template(f"{template}.md.jinja").render(values).strip()
    text = re.sub(r"(?m)(?<!\|\n)^\| .*\|$", lambda heading: f"{heading[0]}\n|" + "---|" * heading[0].count(" |"), text)
    return re.sub(r"\n{3,}", "\n\n", text) + "\n"


_TEMPLATES: Final = jinja2.Environment(
    loader=jinja2.FileSystemLoader(ROOT / "benchmarks" / "templates"),
    autoescape=False,
    trim_blocks=True,
    lstrip_blocks=True,
    undefined=jinja2.StrictUndefined,
)
_TEMPLATES.filters |= {"f": figure, "percent": percent, "grouped": grouped, "times": times, "interval": interval}
_TEMPLATES.filters |= {"filled": filled, "yes": lambda value: "yes" if value else "no"}
_TEMPLATES.globals |= {"record": read_result, "about": about, "conditions": conditions}
_TEMPLATES.filters["conditions"] = condition_table
_TEMPLATES.globals |= {"runs_of": runs_of, "summary": summary, "simulated_methods": simulated_methods}


def title(page: str) -> str:
    """Return the heading of a page."""
    return next(line[2:] for line in page.splitlines() if line.startswith("# "))


def render_protocol() -> str:
    """Return the page of protocol 1: one table per temperature, and the drawings made."""
    return render("protocol", file=PROTOCOL_FILE, biases=exact_biases())


def render_claims() -> str:
    """Return the page of claims."""
    records = {name: read_result(name) for name in dict.fromkeys(claim.file for claim in CLAIMS)}
    return render("claims", claims=[claim.decided(records[claim.file]) for claim in CLAIMS])


def render_validation() -> str:
    """Return the page of the simulator's errors."""
    files = [name for name in (CLOSED_FORMS, *PREDICTIONS) if (RESULTS / name).is_file()]
    return render("validation", **validation_figures({name: read_result(name) for name in files}))


def render_pages() -> dict[str, str]:
    """Return every page by its file name."""
    renderers = {"protocol": render_protocol, "claims": render_claims, "validation": render_validation}
    texts = {name: renderers[name]() if name in renderers else render(name) for name in ABOUT}
    texts["index"] = render("index", pages=ABOUT, made=texts, title=title)
    return {f"{name}.md": f"{NOTE}\n\n{text}" for name, text in texts.items()}


def _best_rows(record: Mapping[str, Any], run: Mapping[str, Any], count: int) -> list[dict[str, Any]]:
    """Return the best rows of a comparison: plain autoregression, and the fastest tuned methods.

    Left out are rows whose pictures are worse than plain autoregression's by the whole 95 % interval, and rows with
    less than a quarter of the pictures of the largest row.
    """
    rows = [row for row in summary(record, run) if row.get("preset", "tuned") == "tuned"]
    most = max(row["images"] for row in rows)
    good = [row for row in rows if (row["quality_over_ar_high"] is None or row["quality_over_ar_high"] >= 0.0)]
    return [row for row in good if 4 * row["images"] >= most][:count]


def render_readme(text: str) -> str:
    """Return README.md with an updated table: the best rows of the protocol's record."""
    record = read_result(PROTOCOL_FILE)
    run = run_at(record, 1.0)
    if run is None:
        raise SystemExit(f"{PROTOCOL_FILE} has no comparison at temperature 1; run `underpaint protocol` to its end")
    begin, rest = text.split(README_BEGIN)
    lines = textwrap.wrap(run["command"], _COMMAND_LETTERS, break_long_words=False, break_on_hyphens=False)
    rows, command = _best_rows(record, run, README_ROWS), " \\\n        ".join(lines)
    exact = next(one for one in summary(record, run) if one["lossless"] and one["method"] != BASELINE)
    table = render("readme", run=run, rows=rows, exact=exact, file=PROTOCOL_FILE, command=command)
    return f"{begin}{README_BEGIN}\n\n{table}\n{README_END}{rest.split(README_END)[1]}"


def main(arguments: list[str] | None = None) -> int:
    """Write the pages, or compare them."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.pages", description=__doc__)
    parser.add_argument("--check", action="store_true", help="write nothing; code 1 where a page is out of date")
    args = parser.parse_args(arguments)
    docs = {PAGES / name: text for name, text in render_pages().items()}
    docs[README] = render_readme(README.read_text(encoding="utf-8"))
    if not args.check:
        for path, text in docs.items():
            write_beside(path, text.encode())
        print(f"{len(docs) - 1} pages in {PAGES.relative_to(ROOT)}")
        return 0
    stale = [path.name for path, text in docs.items() if not path.is_file() or path.read_text(encoding="utf-8") != text]
    stale += [path.name for path in PAGES.glob("*.md") if path not in docs]
    if stale:
        print(f"out of date: {', '.join(sorted(stale))}; run python -m benchmarks.pages", file=sys.stderr)
    return 1 if stale else 0


if __name__ == "__main__":
    sys.exit(main())

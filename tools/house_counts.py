"""Print how large the house is, and how many places a change to it touches.

    python tools/house_counts.py            a table
    python tools/house_counts.py --json     the same as JSON

What `generate` imports and runs through is measured: one small picture is drawn in a process of its own. A file counts
as run through where one of its functions was called outside of an import. What a new method, rule or decoder option
touches is counted by an example that exists: the files of the product that name it. The examples are PJD (a Jacobi-type
method with a device form), `lookup` (a refill of Jacobi windows, with kernels of its own), GSD (a rule with a device
form) and `post_norm` (an option of decoders). Lines are all lines of Python files, docstrings and blank lines included.
"""

import argparse
import json
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[1]
ROOMS: Final = (
    *("algos", "artifacts", "sim", "models", "training", "export", "runtime", "serve", "zoo", "cli"),
    "underpaint",
)
"""Top-level folders of the product; folders that a checkout lacks count nothing."""
EXAMPLES: Final = {
    "files that name a Jacobi-type method with a device form (PJD)": r"jacobi_?fronts?\b|JacobiFront|\bpjd\b",
    "files that name a refill of Jacobi windows with a device form (lookup)": r"\blookup\b|jacobi-lookup|look_?up",
    "files that name a rule with a device form (GSD)": r"\bgsd\b|Gsd|_gsd\b|\bgsd_",
    "files that name an option of decoders (post_norm)": r"\bpost_norm\b",
}
LITERAL: Final = r"""["']gsd["']"""
PROMPT: Final = "a woolly fox left of an outlined pumpkin"
DRAWING: Final = """
import json, sys, threading
from pathlib import Path
root, out, counts = sys.argv[1:]
files, importing = set(), 0
def watch(frame, event, argument):
    global importing
    code = frame.f_code
    if code.co_name == "<module>":
        importing += (event == "call") - (event == "return")
    elif event == "call" and not importing and code.co_flags & 1:
        files.add(code.co_filename)
sys.argv = ["underpaint", "generate", {prompt!r}, "--resolution", "64", "--temperature", "0", "--out", out]
from underpaint.cli.app import main
sys.setprofile(watch)
threading.setprofile(watch)
try:
    main()
except SystemExit as stopped:
    if stopped.code:
        raise
finally:
    sys.setprofile(None)
own = [file for file in files if file.startswith(root) and "/.venv/" not in file]
modules = [name for name in sys.modules if name == "underpaint" or name.startswith("underpaint.")]
Path(counts).write_text(json.dumps([len(modules), len(own)]))
"""


def python_files(*folders: str) -> list[Path]:
    """Return all Python files below top-level folders of the checkout, without absent folders and caches."""
    paths = [path for folder in folders for path in sorted((ROOT / folder).rglob("*.py"))]
    return [path for path in paths if "__pycache__" not in path.parts]


def lines(files: list[Path]) -> int:
    """Return the number of lines in files, blank ones included."""
    return sum(len(path.read_text(encoding="utf-8").splitlines()) for path in files)


def naming(pattern: str, files: list[Path]) -> list[Path]:
    """Return the files whose text or own name matches a regular expression."""
    seen = re.compile(pattern)
    return [path for path in files if seen.search(path.stem) or seen.search(path.read_text(encoding="utf-8"))]


def generate_counts() -> tuple[int, int]:
    """Draw one picture in its own process; return counts of imported product modules, and of files that it ran.

    Raises RuntimeError if the picture could not be drawn.
    """
    with tempfile.TemporaryDirectory() as folder:
        counts = Path(folder) / "counts.json"
        program = DRAWING.replace("{prompt!r}", repr(PROMPT))
        command = [sys.executable, "-c", program, str(ROOT), str(Path(folder) / "fox.png"), str(counts)]
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
        if not counts.is_file():
            raise RuntimeError(f"underpaint generate failed; install the checkout (make setup):\n{done.stderr[-800:]}")
        modules, files = json.loads(counts.read_text())
        return modules, files


def house_counts() -> dict[str, int]:
    """Return every count by its label, in the order in which they are printed."""
    product = python_files(*ROOMS)
    counts = {what: len(naming(pattern, product)) for what, pattern in EXAMPLES.items()}
    counts["of the rule's files, those with its name as a text (lists and tables)"] = len(naming(LITERAL, product))
    counts["modules that generate imports"], counts["files that generate runs through"] = generate_counts()
    counts |= {f"lines of {room}/": lines(python_files(room)) for room in ROOMS if (ROOT / room).is_dir()}
    counts["lines of the product"] = lines(product)
    for folder in ("benchmarks", "tools", "tests"):
        counts[f"lines of {folder}/"] = lines(python_files(folder))
    return counts


def main(arguments: list[str] | None = None) -> None:
    """Print the counts."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="print JSON")
    options = parser.parse_args(arguments)
    counts = house_counts()
    if options.json:
        print(json.dumps(counts, indent=1))
        return
    width = max(map(len, counts))
    for what, count in counts.items():
        print(f"{what:{width}}  {count:>7,}")


if __name__ == "__main__":
    main()

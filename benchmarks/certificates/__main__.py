"""Judge public verifiers and write the page of certificates.

Run: python -m benchmarks.certificates [--sources DIR] [--only NAME ...] [--seconds 60]

DIR holds a clone of each project, in a folder "owner+name"; verifiers of installed packages need none. Each certificate
goes to benchmarks/results/certificates/NAME.json. Without --sources the page alone is made, from those files; --check
writes nothing and ends with code 1 where a page is not what they make. The scripts in docs/certificates were made once:
`git show 8b010a0d:benchmarks/certificates/scripts.py`.
"""

import argparse
import importlib.metadata
import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from benchmarks.certificates.page import RESULTS, pages
from underpaint.artifacts.manifest import write_beside


def version_of(folder: Path, project: str) -> str:
    """Return the short commit of a clone, or the version of an installed package."""
    package = project.partition("/")[2]
    if not (folder / ".git").exists():
        noted = folder / "COMMIT"
        return noted.read_text().strip()[:7] if noted.is_file() else importlib.metadata.version(package)
    command = ["git", "-C", str(folder), "rev-parse", "--short=7", "HEAD"]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


def judge(sources: Path, only: list[str], seconds: float) -> None:
    """Judge the available verifiers one after another, and write a file for each."""
    import torch

    from benchmarks.certificates.table import VERIFIERS
    from underpaint.sim.certify.adapters import verifier_of
    from underpaint.sim.certify.certificate import certify
    from underpaint.sim.certify.measurement import Effort
    from underpaint.sim.certify.report import certificate_lines

    torch.set_num_threads(1)
    RESULTS.mkdir(parents=True, exist_ok=True)
    for one in VERIFIERS:
        folder = sources / one.project.replace("/", "+")
        if only and one.name not in only:
            continue
        begun = time.monotonic()
        try:
            version = version_of(folder, one.project)
            verifier = verifier_of(one.build(folder), one.interface, one.bits)
        except (OSError, ImportError, ValueError, subprocess.CalledProcessError) as error:
            print(f"{one.name}: left out: {error}", file=sys.stderr)
            continue
        effort = Effort(checks=256, margin=one.margin, bits=one.bits)
        result = certify(verifier, one.drawn, one.chain, one.count, 0, effort, 10.0, seconds)
        values: dict[str, Any] = {
            "name": one.name,
            "project": one.project,
            "version": version,
            "judged": one.judged,
            "interface": one.interface,
            "relaxed": one.relaxed,
            "command": f"python -m benchmarks.certificates --sources DIR --only {one.name}",
            "certificate": result.to_dict(),
            "report": certificate_lines(result, one.name)[1:],
        }
        write_beside(RESULTS / f"{one.name}.json", (json.dumps(values, indent=1) + "\n").encode())
        print(f"{one.name}: {result.verdict}, up to {result.largest:.3g}, {time.monotonic() - begun:.0f} s", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.certificates", description=__doc__)
    parser.add_argument("--sources", type=Path, help="folder of clones")
    parser.add_argument("--only", nargs="+", default=[], help="judge these alone")
    parser.add_argument("--seconds", type=float, default=60.0, help="begin no further case of a verifier after this")
    parser.add_argument("--check", action="store_true", help="compare the page with the files")
    args = parser.parse_args()
    if args.sources is not None:
        judge(args.sources, args.only, args.seconds)
    texts = pages()
    if args.check:
        sys.exit(0 if all(path.is_file() and path.read_text(encoding="utf-8") == texts[path] for path in texts) else 1)
    for path, text in texts.items():
        path.parent.mkdir(exist_ok=True)
        write_beside(path, text.encode())


if __name__ == "__main__":
    main()

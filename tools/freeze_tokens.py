"""Write the tokens that every method draws, or hold today's code to what was written before.

    python tools/freeze_tokens.py --write runs/tokens.json     before a change
    python tools/freeze_tokens.py --check runs/tokens.json     after it: exit code 1 and the names of what changed

Every method is drawn from the shipped models, at both presets and at temperatures 0 and 1. Engine costs are fixed
numbers here, so that methods which read them decide alike on every machine. Passes are counted too: a change that keeps
the tokens but needs more passes is a change.
"""

import argparse
import hashlib
import json
import sys
from dataclasses import replace
from pathlib import Path

from underpaint.algos.draft.costs import EngineCosts
from underpaint.runtime.drawing import draw
from underpaint.runtime.methods.registry import METHODS, build_method, resolve
from underpaint.runtime.pipeline import Pipeline

PROMPT = "a woolly fox left of an outlined pumpkin"
COSTS = EngineCosts(
    verify_ms=((1, 3.0), (2, 3.2), (4, 3.5), (8, 4.4), (16, 6.1), (32, 9.5), (64, 17.0)),
    draft_ms=((1, 0.5), (8, 0.7), (32, 1.2)),
)
RESOLUTIONS = (64, 128)


def frozen(names: list[str]) -> dict[str, list[object]]:
    """Return, by "resolution preset temperature method": sha256 of the tokens, target passes, and drafter passes."""
    records: dict[str, list[object]] = {}
    for resolution in RESOLUTIONS:
        pipeline = Pipeline.open(resolution=resolution)
        condition = pipeline.condition(PROMPT)
        tables = replace(pipeline.tables, costs=COSTS)
        for preset in ("tuned", "paper"):
            for temperature in (0.0, 1.0):
                sampling = replace(pipeline.sampling, temperature=temperature)
                for name in names:
                    key = f"{resolution} {preset} {temperature:g} {name}"
                    try:
                        method = build_method(name, resolve(name, temperature, preset=preset), tables)
                        drawing = draw(pipeline, method, sampling, condition, seed=7)
                    except ValueError:
                        records[key] = ["refused"]
                        continue
                    digest = hashlib.sha256(drawing.tokens_array().tobytes()).hexdigest()
                    records[key] = [digest[:16], drawing.target_nfe, drawing.drafter_nfe]
    return records


def main() -> int:
    """Write or check the tokens; return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", type=Path, help="file to write")
    parser.add_argument("--check", type=Path, help="file to hold today's code to")
    parser.add_argument("--methods", default="", help="comma-separated; all of them by default")
    options = parser.parse_args()
    names = options.methods.split(",") if options.methods else [spec.name for spec in METHODS]
    records = frozen(names)
    if options.write is not None:
        options.write.parent.mkdir(parents=True, exist_ok=True)
        options.write.write_text(json.dumps(records, indent=1) + "\n")
        print(f"{len(records)} drawings -> {options.write}")
    if options.check is None:
        return 0
    before = json.loads(options.check.read_text())
    gone = [] if options.methods else [key for key in before if key not in records]
    changed = [key for key in records if before.get(key) != records[key]] + gone
    for key in changed:
        print(f"{key}: was {before.get(key)}, is {records.get(key)}")
    print(f"{len(records) + len(gone) - len(changed)} of {len(records) + len(gone)} drawings are as they were")
    return 1 if changed else 0


if __name__ == "__main__":
    sys.exit(main())

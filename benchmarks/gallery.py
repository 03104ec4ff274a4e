"""The README's picture: a few methods on a few prompts of the recorded comparison, with its speed-ups.

Run: python -m benchmarks.gallery [--columns 5] [--out docs/gallery.png]

The pictures are drawn anew, with the recorded settings, prompts and seed; the figures beside them are the recorded
ones, of all its pictures.
"""

import argparse
import dataclasses
from pathlib import Path

from benchmarks.pages import README_FILE, ROOT, read_result
from benchmarks.report import at_least, parse, refusing
from benchmarks.small_png import shrink
from underpaint.runtime.drawing import draw
from underpaint.runtime.evaluation.gallery import write_gallery
from underpaint.runtime.evaluation.report import ReportRow
from underpaint.runtime.methods.registry import build_method, resolve
from underpaint.runtime.pipeline import Pipeline

METHODS = ("ar", "jacobi-lookup", "lantern", "adt+lantern", "mulo-islands")


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gallery", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--columns", type=at_least(1), default=5, help="prompts, the first of the comparison")
    parser.add_argument("--out", type=Path, default=ROOT / "docs" / "gallery.png", help="the picture, a PNG")
    asked = parse(parser, arguments)
    result = read_result(README_FILE)
    settings, found = result["settings"], {row["method"]: row for row in result["rows"]}
    names = [field.name for field in dataclasses.fields(ReportRow)]
    rows = [ReportRow(**{name: found[method].get(name) for name in names}) for method in METHODS]
    prompts, temperature = settings["prompts"][: asked.columns], settings["temperature"]
    with refusing(parser):
        pipeline = Pipeline.open(resolution=settings["resolution"])
    sampling = dataclasses.replace(pipeline.sampling, temperature=temperature)
    conditions = [pipeline.condition(prompt) for prompt in prompts]
    pictures = {}
    for method in METHODS:
        built = build_method(method, resolve(method, temperature), pipeline.tables)
        drawn = [draw(pipeline, built, sampling, condition, settings["seeds"][0]) for condition in conditions]
        pictures[method] = [pipeline.picture(one.tokens_array()) for one in drawn]
    count = len(settings["prompts"]) * len(settings["seeds"])
    title = f"Temperature {temperature:g}; speed-ups over plain autoregression, of {count} pictures a method"
    write_gallery(asked.out, rows, pictures, prompts, title)
    shrink(asked.out)
    print(asked.out)


if __name__ == "__main__":
    main()

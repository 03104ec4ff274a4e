"""The README's picture: a few methods on a few prompts of the recorded comparison, with its speed-ups.

Run: python -m benchmarks.gallery [--columns 5] [--out docs/gallery.png]

The pictures are drawn anew, with the recorded settings, prompts and seed; the figures beside them are the recorded
ones, of all its pictures.
"""

import argparse
import dataclasses
import io
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from PIL import Image

from benchmarks.pages import ROOT, read_result
from benchmarks.report import at_least, parse, refusing
from underpaint.artifacts.manifest import write_beside
from underpaint.runtime.drawing import draw
from underpaint.runtime.evaluation.gallery import write_gallery
from underpaint.runtime.evaluation.report_row import ReportRow
from underpaint.runtime.methods.registry import MethodConfig, build_method, resolve
from underpaint.runtime.pipeline import Pipeline

PAGE_WIDTH = 840
"""Pixels: what a README is shown at."""
COLOURS = 160
"""Of the picture's palette."""
RECORD = "textured-compare-128-t1.json"
"""The record of the comparison."""
METHODS = ("ar", "jacobi-lookup", "lantern", "adt+lantern", "mulo-islands")


def as_recorded(method: str, temperature: float, recorded: Mapping[str, Any]) -> MethodConfig:
    """What a method was recorded with, though MuLo-SD or row fronts are tuned otherwise since.

    recorded: `settings.methods` of a comparison, of this method. ValueError where a tree, a window or a rule is tuned
    otherwise since: those of a record cannot be asked for by name.
    """
    config = resolve(method, temperature)
    own = config.to_dict().get("settings", {})
    changed = {name: value for name, value in recorded.get("settings", {}).items() if own.get(name) != value}
    if changed:
        config = resolve(method, temperature, settings=[f"{name}={value}".lower() for name, value in changed.items()])
    shown = config.to_dict()  # its rule pools what the folder's table holds, which is recorded and not asked for
    if any(shown.get(part) != recorded.get(part) for part in ("loop", "settings", "policy", "policy_settings", "rule")):
        raise ValueError(f"{RECORD} has '{method}' with other settings than it is tuned to; compare anew")
    return config


def shrink(path: Path) -> None:
    """Write a picture file anew, with a palette, dithered, and at most as wide as a page shows it."""
    with Image.open(path) as picture:
        picture.thumbnail((PAGE_WIDTH, picture.height), Image.Resampling.LANCZOS)
        opaque = picture.convert("RGB")
    # Rare colours keep an entry: by area alone, a small green leaf turns brown.
    palette = opaque.quantize(COLOURS, Image.Quantize.MAXCOVERAGE, kmeans=5)
    packed = io.BytesIO()
    opaque.quantize(palette=palette, dither=Image.Dither.FLOYDSTEINBERG).save(packed, "PNG", optimize=True)
    write_beside(path, packed.getvalue())


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gallery", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--columns", type=at_least(1), default=5, help="prompts, the first of the comparison")
    parser.add_argument("--out", type=Path, default=ROOT / "docs" / "gallery.png", help="the picture, a PNG")
    asked = parse(parser, arguments)
    result = read_result(RECORD)
    settings, found = result["settings"], {row["method"]: row for row in result["rows"]}
    names = [field.name for field in dataclasses.fields(ReportRow)]
    rows = [ReportRow(**{name: found[method].get(name) for name in names}) for method in METHODS]
    prompts, temperature = settings["prompts"][: asked.columns], settings["temperature"]
    with refusing(parser):
        pipeline = Pipeline.open(resolution=settings["resolution"])
        configs = {method: as_recorded(method, temperature, settings["methods"][method]) for method in METHODS}
    sampling = dataclasses.replace(pipeline.sampling, temperature=temperature)
    conditions = [pipeline.condition(prompt) for prompt in prompts]
    pictures = {}
    for method, config in configs.items():
        built = build_method(method, config, pipeline.tables)
        drawn = [draw(pipeline, built, sampling, condition, settings["seeds"][0]) for condition in conditions]
        pictures[method] = [pipeline.picture(one.tokens_array()) for one in drawn]
    count = len(settings["prompts"]) * len(settings["seeds"])
    title = f"Temperature {temperature:g}; speed-ups over plain autoregression, of {count} pictures a method"
    write_gallery(asked.out, rows, pictures, prompts, title)
    shrink(asked.out)
    print(asked.out)


if __name__ == "__main__":
    main()

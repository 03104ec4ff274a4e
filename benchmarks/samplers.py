"""How well up- and down-samplers guess the tokens of the other resolution, and what their pictures look like.

Run: python -m benchmarks.samplers [--from 64 --to 128] [--scenes 64] [--kinds bicubic latent ...] [--out FILE]
     [--pictures FILE.png]

Scenes that no training drew are rendered and encoded at both resolutions (this needs the art, as training does).
Up: from the tokens at the smaller side, all rows in one call and one row a call (as drafts are drawn), against the
tokens at the larger. Down: from the tokens at the larger. Reported with 95 % intervals over scenes: the share of
tokens guessed right; the PSNR of the decoded guess against the rendered scene and against the tokenizer's own
reconstruction of it; the share of low tokens that survive a round trip; milliseconds a call (median). `tokenizer` is
the ceiling: the true tokens decoded. The last line is JSON; --out writes it to a file too.
"""

import time
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from benchmarks.report import at_least, finish, options, parse, refusing
from underpaint.algos.arrays import IntArray
from underpaint.algos.protocols import Grid
from underpaint.algos.spatial.resolution import ResolutionMap
from underpaint.runtime.engines.context import EngineContext
from underpaint.runtime.engines.images import ImageDecoder, ImageEncoder
from underpaint.runtime.files import check_file_writable
from underpaint.runtime.resampling.registry import RESAMPLERS, models_behind, open_resampler
from underpaint.runtime.resampling.resampler import Resampler
from underpaint.training.data.textured_scenes import Split
from underpaint.training.pictures import TexturedPictures
from underpaint.zoo.load import FOLDER, manifest, names
from underpaint.zoo.resolutions import RESOLUTIONS

Picture = NDArray[np.uint8]
SPLIT: Split = "seen"


class Sides(NamedTuple):
    """One scene at both resolutions: rendered, encoded, and drawn from its codes."""

    low_scene: Picture
    high_scene: Picture
    low: IntArray
    high: IntArray
    low_drawn: Picture
    high_drawn: Picture


class Guess(NamedTuple):
    tokens: IntArray
    ms: list[float]


def psnr(found: Picture, wanted: Picture) -> float:
    squared = np.square(found.astype(np.float64) - wanted).mean()
    return float(10 * np.log10(255**2 / max(squared, 1e-3)))


def prepare(count: int, grids: ResolutionMap, decoder: ImageDecoder, encoder: ImageEncoder) -> list[Sides]:
    pictures, found = TexturedPictures(), []
    for index in range(count):
        small, large = (pictures([index], grid.height * encoder.stride, SPLIT)[0] for grid in (grids.low, grids.high))
        low, high = encoder(small), encoder(large)
        found.append(Sides(small, large, low, high, decoder(low, grids.low), decoder(high, grids.high)))
    return found


def enlarge(resampler: Resampler, low: IntArray, rows_a_call: int) -> Guess:
    parts, spent = [], []
    for start in range(0, resampler.map.low.height, rows_a_call):
        begun = time.perf_counter()
        parts.append(resampler.enlarge(low, range(start, start + rows_a_call)))
        spent.append(1e3 * (time.perf_counter() - begun))
    return Guess(np.concatenate(parts), spent)


def reduce(resampler: Resampler, high: IntArray) -> Guess:
    begun = time.perf_counter()
    tokens = resampler.reduce(high, range(resampler.map.low.height))
    return Guess(tokens, [1e3 * (time.perf_counter() - begun)])


def interval(values: list[float]) -> dict[str, float]:
    half = 1.96 * np.std(values, ddof=1) / np.sqrt(len(values))
    return {"mean": round(float(np.mean(values)), 4), "half": round(float(half), 4)}


def measure(
    kind: str, resampler: Resampler, scenes: list[Sides], decoder: ImageDecoder
) -> tuple[dict[str, object], list[Picture]]:
    columns: dict[str, list[float]] = {}
    times: dict[str, list[float]] = {"up_ms": [], "up_row_ms": [], "down_ms": []}
    drawn = []

    def note(name: str, guess: IntArray, wanted: IntArray, grid: Grid, scene: Picture, best: Picture) -> Picture:
        picture = decoder(guess, grid)
        columns.setdefault(f"{name}_accuracy", []).append(float(np.mean(guess == wanted)))
        columns.setdefault(f"{name}_psnr_scene", []).append(psnr(picture, scene))
        columns.setdefault(f"{name}_psnr_tokenizer", []).append(psnr(picture, best))
        return picture

    low, high = resampler.map.low, resampler.map.high
    resampler.enlarge(scenes[0].low, range(low.height))
    resampler.reduce(scenes[0].high, range(low.height))
    for each in scenes:
        whole, by_row = enlarge(resampler, each.low, low.height), enlarge(resampler, each.low, 1)
        small = reduce(resampler, each.high)
        drawn.append(note("up", whole.tokens, each.high, high, each.high_scene, each.high_drawn))
        note("up_row", by_row.tokens, each.high, high, each.high_scene, each.high_drawn)
        note("down", small.tokens, each.low, low, each.low_scene, each.low_drawn)
        back = reduce(resampler, whole.tokens).tokens
        columns.setdefault("round_trip", []).append(float(np.mean(back == each.low)))
        for name, spent in (("up_ms", whole.ms), ("up_row_ms", by_row.ms), ("down_ms", small.ms)):
            times[name] += spent
    row: dict[str, object] = {"kind": kind} | {name: interval(values) for name, values in columns.items()}
    return row | {name: round(float(np.median(spent)), 3) for name, spent in times.items()}, drawn


def ceiling(scenes: list[Sides]) -> dict[str, object]:
    return {
        "kind": "tokenizer",
        "up_psnr_scene": interval([psnr(each.high_drawn, each.high_scene) for each in scenes]),
        "down_psnr_scene": interval([psnr(each.low_drawn, each.low_scene) for each in scenes]),
    }


def table(rows: list[dict[str, object]]) -> str:
    columns = {
        "up_accuracy": 100,
        "up_psnr_scene": 1,
        "up_psnr_tokenizer": 1,
        "up_row_accuracy": 100,
        "up_row_psnr_scene": 1,
        "down_accuracy": 100,
        "down_psnr_scene": 1,
        "round_trip": 100,
    }
    lines = [f"{'kind':12s}" + "".join(f"{name:>20s}" for name in columns) + "   ms up / row / down"]
    for row in rows:
        cells = []
        for name, scale in columns.items():
            value = row.get(name)
            cells.append(
                f"{value['mean'] * scale:.2f} ± {value['half'] * scale:.2f}" if isinstance(value, dict) else ""
            )
        spent = " / ".join(str(row[name]) for name in ("up_ms", "up_row_ms", "down_ms") if name in row)
        lines.append(f"{row['kind']!s:12s}" + "".join(f"{cell:>20s}" for cell in cells) + f"   {spent}")
    return "\n".join(lines)


def strips(scenes: list[Sides], drawn: dict[str, list[Picture]], count: int) -> Picture:
    """One row a scene: the scene, its tokens decoded at the larger and the smaller side, then every kind's guess."""
    rows = []
    for index, each in enumerate(scenes[:count]):
        ratio = len(each.high_drawn) // len(each.low_drawn)
        small = each.low_drawn.repeat(ratio, axis=0).repeat(ratio, axis=1)
        guesses = [pictures[index] for pictures in drawn.values()]
        rows.append(np.concatenate([each.high_scene, each.high_drawn, small, *guesses], axis=1))
    return np.concatenate(rows)


def main(arguments: list[str] | None = None) -> None:
    parser = options("samplers", __doc__)
    parser.add_argument(
        "--from", dest="low", type=int, choices=RESOLUTIONS, default=64, help="the smaller side in pixels"
    )
    parser.add_argument(
        "--to", dest="high", type=int, choices=RESOLUTIONS, default=128, help="the larger side in pixels"
    )
    parser.add_argument("--scenes", type=at_least(2), default=64)
    parser.add_argument("--kinds", nargs="+", choices=RESAMPLERS, help="all that the folder holds, if none is named")
    parser.add_argument("--folder", type=Path, default=FOLDER, help="folder of models (default: the zoo)")
    parser.add_argument("--threads", type=at_least(1))
    parser.add_argument(
        "--pictures", type=Path, help="write a PNG: scene, tokenizer, the smaller side, then every kind"
    )
    asked = parse(parser, arguments)
    settings = EngineContext(threads=asked.threads)
    with refusing(parser):
        if asked.pictures is not None:
            check_file_writable(asked.pictures)
        held = set(names(asked.folder))
        if asked.low >= asked.high:
            raise ValueError(f"--from {asked.low} --to {asked.high}: expected the smaller side first")
        sides = (asked.low, asked.high)
        decoder = ImageDecoder(folder=asked.folder, settings=settings)
        encoder = ImageEncoder(folder=asked.folder, settings=settings)
        grids = ResolutionMap(*(Grid(side // encoder.stride, side // encoder.stride) for side in sides))
        kinds = asked.kinds or [kind for kind in RESAMPLERS if set(models_behind(kind, sides)) <= held]
        resamplers = {kind: open_resampler(kind, grids, asked.folder, settings, sides) for kind in kinds}
    scenes = prepare(asked.scenes, grids, decoder, encoder)
    rows, drawn = [ceiling(scenes)], {}
    for kind, resampler in resamplers.items():
        row, drawn[kind] = measure(kind, resampler, scenes, decoder)
        rows.append(row)
        print(table(rows[-1:]), flush=True)
    print(table(rows))
    if asked.pictures:
        Image.fromarray(strips(scenes, drawn, 6)).save(asked.pictures)
    models = {
        name: manifest(name, asked.folder).sha256 for name in sorted(held) if name.startswith(("vq", "samp", "sup"))
    }
    found = {"sides": sides, "scenes": asked.scenes, "split": SPLIT, "sha256": models, "rows": rows}
    finish(found, asked.out)


if __name__ == "__main__":
    main()

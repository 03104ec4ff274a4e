"""Export trained checkpoints into a folder of models: `python -m underpaint.export.run --help`."""

import argparse
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final, TypeAlias

from underpaint.artifacts.manifest import Manifest
from underpaint.export.decoders import export_drafter, export_target
from underpaint.export.reference import write_reference
from underpaint.export.samplers import Between, export_sampler, export_super_resolution
from underpaint.export.store import Origin
from underpaint.export.vision import export_judge, export_tokenizer, fold_norms
from underpaint.export.weights import halve
from underpaint.models.checkpoints import load_drafter, load_target, load_vq, read, story
from underpaint.models.judge import load_judge
from underpaint.models.sampler import load_sampler, load_super_resolution
from underpaint.models.train.pictures import EmojiPictures
from underpaint.runtime.evaluation.quality import reference_name
from underpaint.runtime.resampling.registry import SUPER_RESOLUTION, TRAINED_BY, recipe_of
from underpaint.zoo.load import FOLDER
from underpaint.zoo.sides import SHIPPED_SIDES, between

SOURCE: Final = "trained from random weights on EmojiScenes, by the recipe"
_CHECKPOINT: Final = "checkpoint.pt"
_Export: TypeAlias = Callable[[Path, Path], tuple[Manifest, ...]]
_Sides: TypeAlias = tuple[int, int]
"""A low and a high side in pixels."""


def _run(runs: Path, name: str) -> Path:
    return runs / name / _CHECKPOINT


def _origin(train: str, what: str, checkpoint: Path, kind: str) -> Origin:
    told = story(read(checkpoint, kind))
    return Origin(SOURCE, f"underpaint train {train} && underpaint export {what}", training=told)


def _target(side: int) -> _Export:
    def export(runs: Path, out: Path) -> tuple[Manifest, ...]:
        path, name = _run(runs, f"guided_{side}"), f"target{side}"
        words, transformer = load_target(path)
        origin = _origin(f"guided --resolution {side}", name, path, "target")
        return (export_target(name, transformer, words, out, origin),)

    return export


def _drafter_command(side: int, told: Mapping[str, Any]) -> str:
    """The command that trains a drafter as its checkpoint was, with drawings or without."""
    command = f"drafter --resolution {side}"
    if any(run["how"].get("drawn_scenes") for run in told.get("runs", ())):
        return f"draw --resolution {side} && underpaint train {command} --drawn runs/drawn"
    return command


def _drafter(side: int, integers: bool) -> _Export:
    def export(runs: Path, out: Path) -> tuple[Manifest, ...]:
        path, name = _run(runs, f"drafter_{side}"), f"drafter{side}" if integers else f"drafter{side}_float"
        _, transformer = load_target(_run(runs, f"guided_{side}"))
        drafter = load_drafter(path, transformer)
        origin = _origin(_drafter_command(side, story(read(path, "drafter"))), name, path, "drafter")
        return (export_drafter(name, drafter, out, origin, integers=integers),)

    return export


def _tokenizer(runs: Path, out: Path) -> tuple[Manifest, ...]:
    path = _run(runs, "tokenizer")
    return export_tokenizer(load_vq(path), out, _origin("tokenizer", "tokenizer", path, "tokenizer"))


def _sampler(name: str, sides: _Sides) -> _Export:
    ends, (direction, losses) = between(*sides), TRAINED_BY[name]

    def export(runs: Path, out: Path) -> tuple[Manifest, ...]:
        path = _run(runs, f"sampler_{direction}_{losses}{ends}")
        made_for = Between.of(read(path, "sampler")["config"])
        origin = _origin(recipe_of(name, sides), name + ends, path, "sampler")
        vq = load_vq(_run(runs, "tokenizer"))
        return (export_sampler(name + ends, load_sampler(path), made_for, vq, out, origin),)

    return export


def _super_resolution(sides: _Sides) -> _Export:
    name = SUPER_RESOLUTION + between(*sides)

    def export(runs: Path, out: Path) -> tuple[Manifest, ...]:
        path = _run(runs, name)
        made_for, vq = Between.of(read(path, "superres")["config"]), load_vq(_run(runs, "tokenizer"))
        origin = _origin(recipe_of(SUPER_RESOLUTION, sides), name, path, "superres")
        return (export_super_resolution(name, load_super_resolution(path), made_for, vq, out, origin),)

    return export


def _judge(runs: Path, out: Path) -> tuple[Manifest, ...]:
    path = _run(runs, "judge")
    return (export_judge(load_judge(path), out, _origin("judge", "judge", path, "judge")),)


def _reference(*sides: int) -> _Export:
    def export(runs: Path, out: Path) -> tuple[Manifest, ...]:
        path = _run(runs, "judge")
        judge = load_judge(path)
        fold_norms(judge)  # the judge that ships is the folded, rounded one
        halve(judge)
        origin = _origin("judge", reference_name(sides[0]), path, "judge")
        return (write_reference(judge, EmojiPictures().sheet, out, origin, sides),)

    return export


def _samplers(sides: _Sides) -> dict[str, _Export]:
    """All that works between two sides, by name."""
    networks = {name: _sampler(name, sides) for name in TRAINED_BY} | {SUPER_RESOLUTION: _super_resolution(sides)}
    return {name + between(*sides): export for name, export in networks.items()}


_BETWEEN: Final = {
    name: export for sides in (SHIPPED_SIDES, (64, 256), (128, 256)) for name, export in _samplers(sides).items()
}


MODELS: Final[Mapping[str, _Export]] = {
    "tokenizer": _tokenizer,
    "target64": _target(64),
    "drafter64": _drafter(64, integers=True),
    "target128": _target(128),
    "drafter128": _drafter(128, integers=True),
    "judge": _judge,
    "judge_reference": _reference(*SHIPPED_SIDES),
    **{name: _BETWEEN[name] for name in ("sampler_up", "sampler_down", "superres")},
}
"""What can be exported; "tokenizer" writes vq_decoder, vq_encoder and codebook, which samplers look for in the folder;
"judge_reference" needs the art."""


OTHERS: Final[Mapping[str, _Export]] = {
    "drafter64_float": _drafter(64, integers=False),
    "drafter128_float": _drafter(128, integers=False),
    "target256": _target(256),
    "drafter256": _drafter(256, integers=True),
    "drafter256_float": _drafter(256, integers=False),
    "judge_reference256": _reference(256),
    **{name: export for name, export in _BETWEEN.items() if name not in MODELS},
}
"""What is exported only when it is named: drafters in float32, to compare the 8-bit ones with, the samplers that other
losses trained, which the latent kinds of `runtime.resampling.registry` look for, and all of 256 px, of which nothing
ships."""


def export_all(runs: Path, out: Path, names: tuple[str, ...] = tuple(MODELS)) -> tuple[Manifest, ...]:
    """Export `names` from the checkpoints under `runs` (guided_64/checkpoint.pt, ...) into `out`.

    Raises ValueError on an unknown name, FileNotFoundError on a missing checkpoint, ParityError where a graph does
    not compute what its torch module does; models exported before stay, whole.
    """
    known = {**MODELS, **OTHERS}
    unknown = [name for name in names if name not in known]
    if unknown:
        raise ValueError(
            f"export: there is no {', '.join(unknown)}; known: {', '.join(known)}. A published checkpoint needs --kind"
        )
    written: list[Manifest] = []
    for name in names:
        written.extend(known[name](runs, out))
    return tuple(written)


def main(arguments: list[str] | None = None, program: str = "python -m underpaint.export.run") -> int:
    """Parse, export, print one line a file; exit status 2 on bad input or a failed comparison."""
    parser = argparse.ArgumentParser(
        prog=program,
        description="Export trained checkpoints to ONNX. Weights are rounded to float16, every graph is compared with "
        "its torch module through the runtime's own engine, and nothing is written where they differ. "
        "Each file gets a JSON manifest beside it.",
        epilog="Checkpoints are read from RUNS/<recipe>/checkpoint.pt, where <recipe> is tokenizer, guided_64, "
        "drafter_64, guided_128, drafter_128, judge, sampler_up_pixel, sampler_down_ce or superres.",
    )
    parser.add_argument(
        "names",
        nargs="*",
        metavar="MODEL",
        help=f"which of {', '.join(MODELS)}; all of these if none is named; only if named: {', '.join(OTHERS)}",
    )
    parser.add_argument("--runs", type=Path, default=Path("runs"), help="folder of the recipes' runs (default: runs)")
    parser.add_argument("--out", type=Path, default=FOLDER, help="folder to write to (default: the zoo)")
    given = parser.parse_args(arguments)
    try:
        written = export_all(given.runs, given.out, tuple(given.names) or tuple(MODELS))
    except (ValueError, FileNotFoundError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    for manifest in written:
        worst = max(manifest.parity.values(), default=0.0)
        print(f"{manifest.file}: {manifest.bytes / 2**20:.2f} MiB, largest difference from torch {worst:.2g}")
    print(f"in all {sum(manifest.bytes for manifest in written) / 2**20:.2f} MiB in {given.out}")
    return 0


if __name__ == "__main__":
    sys.exit(main())

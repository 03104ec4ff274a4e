"""Export checkpoints that were trained here into a folder of models: `underpaint export` without --kind."""

import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple, TypeAlias

from underpaint.artifacts.manifest import Manifest
from underpaint.artifacts.model_index import GRAMMAR, GRAMMAR_FAMILY, read_manifests
from underpaint.export.decoder_weights import round_to_half
from underpaint.export.decoders import export_captioned_target, export_trained_drafter
from underpaint.export.samplers import Between, export_between
from underpaint.export.store import Origin, staged
from underpaint.export.trained_names import OTHER_NAMES, SHIPPED_NAMES
from underpaint.export.vision import export_judge, export_tokenizer, fold_norms, write_reference
from underpaint.models.checkpoints import load_drafter, load_target, load_vq, read, story
from underpaint.models.data.art import Report, unheard
from underpaint.models.judge import load_judge
from underpaint.models.sampler import load_sampler, load_super_resolution
from underpaint.models.train.pictures import EmojiPictures
from underpaint.runtime.evaluation.quality import reference_name
from underpaint.runtime.resampling.registry import SUPER_RESOLUTION, TRAINED_BY, recipe_of
from underpaint.zoo.load import FOLDER
from underpaint.zoo.resolutions import RESOLUTIONS, SHIPPED_RESOLUTIONS, between

SOURCE: Final = "trained from random weights on EmojiScenes, by the recipe"
_CHECKPOINT: Final = "checkpoint.pt"
FAMILY: Final = GRAMMAR_FAMILY


class Folders(NamedTuple):
    """Where an export reads and writes: runs of the recipes, the folder's models, and where new files go at first.

    report: hears how far the art is, which one of the exports needs.
    """

    runs: Path
    held: Path
    aside: Path
    report: Report

    def checkpoint(self, name: str) -> Path:
        """The checkpoint of a run."""
        return _run(self.runs, name)

    def holding(self, file: str) -> Path:
        """Of the two folders of models the one that holds `file`, the new one first."""
        return self.aside if (self.aside / file).is_file() else self.held


class Exported(NamedTuple):
    """One thing to export. runs: names of those that it reads; write: what does it."""

    runs: tuple[str, ...]
    write: Callable[[Folders], tuple[Manifest, ...]]


_Sides: TypeAlias = tuple[int, int]
"""A low and a high side in pixels."""


def _run(runs: Path, name: str) -> Path:
    return runs / name / _CHECKPOINT


def _origin(train: str, what: str, checkpoint: Path, kind: str) -> Origin:
    told = story(read(checkpoint, kind))
    return Origin(SOURCE, f"underpaint train {train} && underpaint export {what}", training=told)


def _target(side: int) -> Exported:
    run, name = f"guided_{side}", f"target{side}"

    def write(folders: Folders) -> tuple[Manifest, ...]:
        path = folders.checkpoint(run)
        origin = _origin(f"guided --resolution {side}", name, path, "target")
        return (export_captioned_target(name, load_target(path), folders.aside, origin),)

    return Exported((run,), write)


def _drafter_command(side: int, told: Mapping[str, Any]) -> str:
    """The command that trains a drafter as its checkpoint was, with drawings or without."""
    command = f"drafter --resolution {side}"
    if any(run["how"].get("drawn_scenes") for run in told.get("runs", ())):
        return f"draw --resolution {side} && underpaint train {command} --drawn runs/drawn"
    return command


def _drafter(side: int, eight_bits: bool) -> Exported:
    own, target, name = f"drafter_{side}", f"guided_{side}", f"drafter{side}" if eight_bits else f"drafter{side}_float"

    def write(folders: Folders) -> tuple[Manifest, ...]:
        path = folders.checkpoint(own)
        drafter = load_drafter(path, load_target(folders.checkpoint(target)).decoder)
        origin = _origin(_drafter_command(side, story(read(path, "drafter"))), name, path, "drafter")
        return (export_trained_drafter(name, drafter, folders.aside, origin, eight_bits=eight_bits),)

    return Exported((own, target), write)


def _write_tokenizer(folders: Folders) -> tuple[Manifest, ...]:
    path = folders.checkpoint("tokenizer")
    return export_tokenizer(load_vq(path), folders.aside, _origin("tokenizer", "tokenizer", path, "tokenizer"))


def _sampler(name: str, sides: _Sides) -> Exported:
    ends, (direction, losses) = between(*sides), TRAINED_BY[name]
    run = f"sampler_{direction}_{losses}{ends}"

    def write(folders: Folders) -> tuple[Manifest, ...]:
        path = folders.checkpoint(run)
        made_for = Between.of(read(path, "sampler")["config"])
        origin = _origin(recipe_of(name, sides), name + ends, path, "sampler")
        vq, held = load_vq(folders.checkpoint("tokenizer")), folders.holding("codebook.npz")
        return (export_between(name + ends, load_sampler(path), made_for, vq, held, folders.aside, origin),)

    return Exported((run, "tokenizer"), write)


def _super_resolution(sides: _Sides) -> Exported:
    name = SUPER_RESOLUTION + between(*sides)

    def write(folders: Folders) -> tuple[Manifest, ...]:
        path = folders.checkpoint(name)
        made_for = Between.of(read(path, "superres")["config"])
        origin = _origin(recipe_of(SUPER_RESOLUTION, sides), name, path, "superres")
        vq, held = load_vq(folders.checkpoint("tokenizer")), folders.holding("codebook.npz")
        return (export_between(name, load_super_resolution(path), made_for, vq, held, folders.aside, origin),)

    return Exported((name, "tokenizer"), write)


def _write_judge(folders: Folders) -> tuple[Manifest, ...]:
    path = folders.checkpoint("judge")
    return (export_judge(load_judge(path), folders.aside, _origin("judge", "judge", path, "judge")),)


def _reference(*sides: int) -> Exported:
    def write(folders: Folders) -> tuple[Manifest, ...]:
        path = folders.checkpoint("judge")
        judge = load_judge(path)
        fold_norms(judge)  # the judge that ships is the folded, rounded one
        round_to_half(judge)
        origin = _origin("judge", reference_name(sides[0]), path, "judge")
        return (write_reference(judge, EmojiPictures(report=folders.report).sheet, folders.aside, origin, sides),)

    return Exported(("judge",), write)


def _samplers(sides: _Sides) -> dict[str, Exported]:
    """All that works between two resolutions, by name."""
    networks = {name: _sampler(name, sides) for name in TRAINED_BY} | {SUPER_RESOLUTION: _super_resolution(sides)}
    return {name + between(*sides): export for name, export in networks.items()}


_BETWEEN: Final = {
    name: export for sides in (SHIPPED_RESOLUTIONS, (64, 256), (128, 256)) for name, export in _samplers(sides).items()
}


_KNOWN: Final[Mapping[str, Exported]] = {
    "tokenizer": Exported(("tokenizer",), _write_tokenizer),
    "judge": Exported(("judge",), _write_judge),
    "judge_reference": _reference(*SHIPPED_RESOLUTIONS),
    "judge_reference256": _reference(256),
    **{f"target{side}": _target(side) for side in RESOLUTIONS},
    **{f"drafter{side}": _drafter(side, eight_bits=True) for side in RESOLUTIONS},
    **{f"drafter{side}_float": _drafter(side, eight_bits=False) for side in RESOLUTIONS},
    **_BETWEEN,
}
MODELS: Final[Mapping[str, Exported]] = {name: _KNOWN[name] for name in SHIPPED_NAMES}
OTHERS: Final[Mapping[str, Exported]] = {name: _KNOWN[name] for name in OTHER_NAMES}


def export_all(
    runs: Path, out: Path, names: tuple[str, ...] = SHIPPED_NAMES, report: Report = unheard
) -> tuple[Manifest, ...]:
    """Export `names` from the checkpoints under `runs` (guided_64/checkpoint.pt, ...) into `out`, with its index.

    The words of the prompts go with them. Raises ValueError on an unknown name, FileNotFoundError on a missing
    checkpoint, both before any work; ManifestError where `out` is of an older format; ParityError where a graph does
    not compute what its torch module does. Then `out` stays as it was: all of `names` are written, or none.
    `report` hears of the progress.
    """
    known = {**MODELS, **OTHERS}
    unknown = [name for name in names if name not in known]
    if unknown:
        raise ValueError(
            f"export: there is no {', '.join(unknown)}; known: {', '.join(known)}. A published checkpoint needs --kind"
        )
    missing = sorted({run for name in names for run in known[name].runs if not _run(runs, run).is_file()})
    if missing:
        raise FileNotFoundError(
            f"no checkpoint at {_run(runs, missing[0])}"
            + (f", nor of {', '.join(missing[1:])}" if missing[1:] else "")
            + "; train them with `underpaint train`, or say --runs"
        )
    if out.is_dir():
        read_manifests(out)
    written: list[Manifest] = []
    with staged(out, FAMILY) as aside:
        shutil.copyfile(FOLDER / GRAMMAR, aside / GRAMMAR)
        for done, name in enumerate(names):
            report("exporting", done, len(names), "models")
            written.extend(known[name].write(Folders(runs, out, aside, report)))
    return tuple(written)

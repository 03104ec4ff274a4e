"""Export checkpoints that were trained here into a folder of models: `underpaint export` without --kind."""

import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Final, NamedTuple, TypeAlias

from underpaint.artifacts.manifest import Manifest
from underpaint.artifacts.model_families import GRAMMAR_SAMPLING, TEXTURED_GUIDANCE
from underpaint.artifacts.model_index import family_of, read_manifests
from underpaint.export.decoder_weights import round_to_half
from underpaint.export.decoders import export_captioned_target, export_trained_drafter
from underpaint.export.samplers import Between, export_between
from underpaint.export.shared_decoders import export_shared_drafter, export_shared_target, round_shared_target
from underpaint.export.store import Origin, staged
from underpaint.export.trained_names import EIGHT_BIT_TARGET, FLOAT_DRAFTER, NAMES, PAIR_TARGET
from underpaint.export.vision import SCENES_PER_HALF, export_judge, export_tokenizer, fold_norms, write_reference
from underpaint.models.checkpoints import load_drafter, load_target, load_vq, read, story
from underpaint.models.data.art import Report, unheard
from underpaint.models.data.batches import FAMILY_GRAMMARS, Family
from underpaint.models.judge import load_judge
from underpaint.models.sampler import load_sampler, load_super_resolution
from underpaint.models.train.pictures import family_pictures
from underpaint.models.train.target import STRIDE
from underpaint.runtime.evaluation.quality import reference_name
from underpaint.runtime.resampling.registry import SUPER_RESOLUTION, TRAINED_BY, recipe_of
from underpaint.zoo.load import FOLDER
from underpaint.zoo.resolutions import RESOLUTIONS, SHIPPED_RESOLUTIONS, between
from underpaint.zoo.textured_prompts import side_word_id

_SOURCES: Final[Mapping[Family, str]] = {
    "emoji": "trained from random weights on EmojiScenes, by the recipe",
    "textured": "trained from random weights on TexturedScenes, by the recipe",
}
_CHECKPOINT: Final = "checkpoint.pt"


class Folders(NamedTuple):
    """Where an export reads and writes: runs of the recipes, the folder's models, and where new files go at first.

    report: hears how far the art is, which one of the exports needs. family: of the scenes that the runs are of.
    """

    runs: Path
    held: Path
    aside: Path
    report: Report
    family: Family

    def checkpoint(self, name: str) -> Path:
        """The checkpoint of a run."""
        return _run(self.runs, name)

    def holding(self, file: str) -> Path:
        """Of the two folders of models the one that holds `file`, the new one first."""
        return self.aside if (self.aside / file).is_file() else self.held

    def origin(self, train: str, what: str, checkpoint: Path, kind: str) -> Origin:
        """Of a run's models. train: what follows `underpaint train` to make one of emoji; what: what is exported."""
        told = story(read(checkpoint, kind))
        made, options = (train, "") if self.family == "emoji" else ("world", f"--scenes {self.family} ")
        recipe = f"underpaint train {made} && underpaint export {options}{what}"
        return Origin(_SOURCES[self.family], recipe, training=told)


class Exported(NamedTuple):
    """One thing to export. runs: names of those that it reads; write: what does it."""

    runs: tuple[str, ...]
    write: Callable[[Folders], tuple[Manifest, ...]]


_Sides: TypeAlias = tuple[int, int]
"""A low and a high side in pixels."""


def _run(runs: Path, name: str) -> Path:
    return runs / name / _CHECKPOINT


def _target(side: int) -> Exported:
    run, name = f"guided_{side}", f"target{side}"

    def write(folders: Folders) -> tuple[Manifest, ...]:
        path = folders.checkpoint(run)
        origin = folders.origin(f"guided --resolution {side}", name, path, "target")
        return (export_captioned_target(name, load_target(path), folders.aside, origin),)

    return Exported((run,), write)


def _write_shared_target(
    folders: Folders, name: str = "target", run: str = "guided", eight_bits: bool = False
) -> tuple[Manifest, ...]:
    """One graph a grid that the target was trained for; ValueError on a target of one grid."""
    path = folders.checkpoint(run)
    side_words = {side: side_word_id(side) for side in _sides_of(path, "target")}
    origin = folders.origin("world", name, path, "target")
    return export_shared_target(load_target(path), side_words, STRIDE, folders.aside, origin, eight_bits)


def _write_shared_drafter(folders: Folders, eight_bits: bool = True) -> tuple[Manifest, ...]:
    """One graph a grid that the drafter was trained for; ValueError on a drafter of one grid."""
    path, target = folders.checkpoint("drafter"), load_target(folders.checkpoint("guided"))
    sides = _sides_of(path, "drafter")
    round_shared_target(target)  # the target that is drawn with is the rounded one
    origin = folders.origin("world", "drafter" if eight_bits else FLOAT_DRAFTER, path, "drafter")
    drafter = load_drafter(path, target.decoder)
    return export_shared_drafter(drafter, sides, STRIDE, folders.aside, origin, eight_bits)


def _sides_of(path: Path, kind: str) -> list[int]:
    """The sides in pixels that a target or drafter of several grids was trained for; ValueError on one of one grid."""
    grids = read(path, kind)["config"].get("grids")
    if not isinstance(grids, list | tuple) or not grids:
        raise ValueError(
            f"{path}: expected a {kind} of several grids, as `underpaint train world` makes it, got one of one grid; "
            "name --runs"
        )
    return [grid * STRIDE for grid in grids]


def _drafter_command(side: int, told: Mapping[str, Any]) -> str:
    """The command that trains a drafter as its checkpoint was, with drawings or without."""
    command = f"drafter --resolution {side}"
    if any(run["how"].get("drawn_scenes") for run in told.get("runs", ())):
        return f"draw --resolution {side} && underpaint train {command} --drawn runs/drawn"
    return command


def _drafter(side: int, eight_bits: bool) -> Exported:
    """A drafter of one resolution."""
    own, name = f"drafter_{side}", f"drafter{side}" if eight_bits else f"drafter{side}_float"
    target = f"guided_{side}"

    def write(folders: Folders) -> tuple[Manifest, ...]:
        path = folders.checkpoint(own)
        drafter = load_drafter(path, load_target(folders.checkpoint(target)).decoder)
        origin = folders.origin(_drafter_command(side, story(read(path, "drafter"))), name, path, "drafter")
        return (export_trained_drafter(name, drafter, folders.aside, origin, eight_bits=eight_bits),)

    return Exported((own, target), write)


def _write_tokenizer(folders: Folders) -> tuple[Manifest, ...]:
    path = folders.checkpoint("tokenizer")
    return export_tokenizer(load_vq(path), folders.aside, folders.origin("tokenizer", "tokenizer", path, "tokenizer"))


def _sampler(name: str, sides: _Sides) -> Exported:
    ends, (direction, losses) = between(*sides), TRAINED_BY[name]
    run = f"sampler_{direction}_{losses}{ends}"

    def write(folders: Folders) -> tuple[Manifest, ...]:
        path = folders.checkpoint(run)
        made_for = Between.of(read(path, "sampler")["config"])
        origin = folders.origin(recipe_of(name, sides), name + ends, path, "sampler")
        vq, held = load_vq(folders.checkpoint("tokenizer")), folders.holding("codebook.npz")
        return (export_between(name + ends, load_sampler(path), made_for, vq, held, folders.aside, origin),)

    return Exported((run, "tokenizer"), write)


def _super_resolution(sides: _Sides) -> Exported:
    name = SUPER_RESOLUTION + between(*sides)

    def write(folders: Folders) -> tuple[Manifest, ...]:
        path = folders.checkpoint(name)
        made_for = Between.of(read(path, "superres")["config"])
        origin = folders.origin(recipe_of(SUPER_RESOLUTION, sides), name, path, "superres")
        vq, held = load_vq(folders.checkpoint("tokenizer")), folders.holding("codebook.npz")
        return (export_between(name, load_super_resolution(path), made_for, vq, held, folders.aside, origin),)

    return Exported((name, "tokenizer"), write)


def _write_judge(folders: Folders) -> tuple[Manifest, ...]:
    path = folders.checkpoint("judge")
    return (export_judge(load_judge(path), folders.aside, folders.origin("judge", "judge", path, "judge")),)


def _reference(*sides: int) -> Exported:
    def write(folders: Folders) -> tuple[Manifest, ...]:
        path = folders.checkpoint("judge")
        judge = load_judge(path)
        fold_norms(judge)  # the judge that ships is the folded, rounded one
        round_to_half(judge)
        origin = folders.origin("judge", reference_name(sides[0]), path, "judge")
        sheet = family_pictures(folders.family, folders.report).sheet
        return (write_reference(judge, sheet, folders.aside, origin, sides, SCENES_PER_HALF),)

    return Exported(("judge",), write)


def _samplers(sides: _Sides) -> dict[str, Exported]:
    """All that works between two resolutions, by name."""
    networks = {name: _sampler(name, sides) for name in TRAINED_BY} | {SUPER_RESOLUTION: _super_resolution(sides)}
    return {name + between(*sides): export for name, export in networks.items()}


_BETWEEN: Final = {
    name: export for sides in (SHIPPED_RESOLUTIONS, (64, 256), (128, 256)) for name, export in _samplers(sides).items()
}


_BOTH: Final[Mapping[str, Exported]] = {
    "tokenizer": Exported(("tokenizer",), _write_tokenizer),
    "judge": Exported(("judge",), _write_judge),
    "judge_reference": _reference(*SHIPPED_RESOLUTIONS),
    **_BETWEEN,
}
_TARGETS: Final[Mapping[str, float]] = {"target": 1.0, EIGHT_BIT_TARGET: 1.0, PAIR_TARGET: TEXTURED_GUIDANCE}
"""What writes the targets of textured scenes, and the guidance that those are drawn with."""
_KNOWN: Final[Mapping[Family, Mapping[str, Exported]]] = {
    "emoji": {
        **_BOTH,
        "judge_reference256": _reference(256),
        **{f"target{side}": _target(side) for side in RESOLUTIONS},
        **{f"drafter{side}": _drafter(side, eight_bits=True) for side in RESOLUTIONS},
        **{f"drafter{side}_float": _drafter(side, eight_bits=False) for side in RESOLUTIONS},
    },
    "textured": {
        **_BOTH,
        "target": Exported(("guided",), _write_shared_target),
        PAIR_TARGET: Exported(("target",), partial(_write_shared_target, name=PAIR_TARGET, run="target")),
        EIGHT_BIT_TARGET: Exported(("guided",), partial(_write_shared_target, name=EIGHT_BIT_TARGET, eight_bits=True)),
        "drafter": Exported(("drafter", "guided"), _write_shared_drafter),
        FLOAT_DRAFTER: Exported(("drafter", "guided"), partial(_write_shared_drafter, eight_bits=False)),
    },
}


def exports(family: Family) -> Mapping[str, Exported]:
    """What can be exported of a family, by name, those that are exported where nothing is named first."""
    names = NAMES[family]
    return {name: _KNOWN[family][name] for name in (*names.usual, *names.others)}


def export_all(
    runs: Path,
    out: Path,
    names: tuple[str, ...] = (),
    report: Report = unheard,
    family: Family = "emoji",
    guidance: float | None = None,
) -> tuple[Manifest, ...]:
    """Export `names` from the checkpoints under `runs` (tokenizer/checkpoint.pt, ...) into `out`, with its index.

    names: none for all that a folder of the family needs. The words of the prompts go with them. guidance: of the
    sampling that the index names, all else of it the family's; None takes that of the target of textured scenes among
    `names`, keeps what `out` has where there is none, or takes the family's.
    Raises ValueError on an unknown name, two names of the same files, a guidance out of range or an `out` of another
    family, FileNotFoundError on a missing checkpoint, all before any work; ManifestError where `out` is of an older
    format; ParityError where a graph does not compute what its torch module does. Then `out` stays as it was: all of
    `names` are written, or none. `report` hears of the progress.
    """
    known, names = exports(family), names or NAMES[family].usual
    unknown = [name for name in names if name not in known]
    if unknown:
        raise ValueError(
            f"export: there is no {', '.join(unknown)}; known: {', '.join(known)}. A published checkpoint needs --kind"
        )
    same = [name for name in names if name in _TARGETS]
    if len(same) > 1:
        raise ValueError(f"export: {' and '.join(same)} write the same files; export one of them into each folder")
    missing = sorted({run for name in names for run in known[name].runs if not _run(runs, run).is_file()})
    if missing:
        recipe = "underpaint train" if family == "emoji" else "underpaint train world"
        raise FileNotFoundError(
            f"no checkpoint at {_run(runs, missing[0])}"
            + (f", nor of {', '.join(missing[1:])}" if missing[1:] else "")
            + f"; train them with `{recipe}`, or say --runs"
        )
    grammar = FAMILY_GRAMMARS[family]
    if out.is_dir():
        read_manifests(out)
        _require_family(out, grammar.family)
    written: list[Manifest] = []
    usual = GRAMMAR_SAMPLING[grammar.family]
    if guidance is None and family == "textured":
        guidance = _guidance_of(names)
    with staged(out, grammar.family, None if guidance is None else replace(usual, guidance=guidance)) as aside:
        shutil.copyfile(FOLDER / grammar.tables, aside / grammar.tables)
        for done, name in enumerate(names):
            report("exporting", done, len(names), "models")
            written.extend(known[name].write(Folders(runs, out, aside, report, family)))
    return tuple(written)


def _guidance_of(names: Sequence[str]) -> float | None:
    """The guidance that the target of textured scenes among `names` is drawn with; None where there is none."""
    return next((_TARGETS[name] for name in names if name in _TARGETS), None)


def _require_family(out: Path, family: str) -> None:
    """ValueError where a folder holds models of another family: their words and codes are others."""
    held = family_of(out)
    if held not in ("", family):
        raise ValueError(
            f"{out} holds models of the family {held}; export those of {family} into a folder of their own"
        )

"""Exports checkpoints trained by this project into a folder of models: `underpaint export` without --kind."""

import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Final, NamedTuple, TypeAlias

from underpaint.artifacts.manifest import Manifest
from underpaint.artifacts.model_families import TEXTURED_FAMILY, TEXTURED_GUIDANCE, TEXTURED_SAMPLING
from underpaint.artifacts.model_index import family_of, read_manifests
from underpaint.export.decoder_weights import round_to_half, round_to_scaled_rows
from underpaint.export.decoders import export_shared_drafter, export_shared_target
from underpaint.export.samplers import Between, export_between
from underpaint.export.store import Origin, staged
from underpaint.export.trained_names import EIGHT_BIT_TARGET, FLOAT_DRAFTER, OTHERS, PAIR_TARGET, USUAL
from underpaint.export.vision import SCENES_PER_HALF, export_judge, export_tokenizer, fold_norms, write_reference
from underpaint.models.checkpoints import (
    load_drafter,
    load_sampler,
    load_super_resolution,
    load_target,
    load_vq,
    read,
    story,
)
from underpaint.models.judge import load_judge
from underpaint.runtime.resampling.registry import SUPER_RESOLUTION, TRAINED_BY, recipe_of, world_stage
from underpaint.training.data.art import Report, unheard
from underpaint.training.grids import STRIDE
from underpaint.training.pictures import TexturedPictures
from underpaint.zoo.load import SCENES, TABLES
from underpaint.zoo.resolutions import SHIPPED_RESOLUTIONS, between
from underpaint.zoo.textured_prompts import side_word_id

_SOURCE: Final = "trained from random weights on TexturedScenes, by the recipe"
_CHECKPOINT: Final = "checkpoint.pt"


class Folders(NamedTuple):
    """The folders of an export, and its progress callback.

    Attributes:
        runs: Folder of the training runs.
        output: The output folder.
        aside: The staging folder.
        report: Callback for the progress of loading the art, which one of the exports needs.
    """

    runs: Path
    output: Path
    aside: Path
    report: Report

    def checkpoint(self, name: str) -> Path:
        """Return the checkpoint file of a run."""
        return _run(self.runs, name)

    def holding(self, file: str) -> Path:
        """Return the folder that contains `file`: the staging folder, else the output folder."""
        return self.aside if (self.aside / file).is_file() else self.output

    def origin(self, what: str, checkpoint: Path, kind: str, train: str = "world") -> Origin:
        """Return the origin of a run's models.

        Args:
            what: The export's name.
            checkpoint: Checkpoint file of the run.
            kind: Kind of the checkpoint.
            train: The arguments of `underpaint train`.
        """
        training = story(read(checkpoint, kind))
        return Origin(_SOURCE, f"underpaint train {train} && underpaint export {what}", training=training)


class Exported(NamedTuple):
    """One possible export.

    Attributes:
        runs: Names of the runs that it reads.
        write: The function that writes it.
    """

    runs: tuple[str, ...]
    write: Callable[[Folders], tuple[Manifest, ...]]


_Sides: TypeAlias = tuple[int, int]
"""The low and the high side in pixels."""


def _run(runs: Path, name: str) -> Path:
    return runs / name / _CHECKPOINT


def _write_target(
    folders: Folders, name: str = "target", run: str = "guided", eight_bits: bool = False
) -> tuple[Manifest, ...]:
    """Write one graph per grid that the target was trained for; raises ValueError for a single-grid target."""
    path = folders.checkpoint(run)
    side_words = {side: side_word_id(side) for side in _sides_of(path, "target")}
    origin = folders.origin(name, path, "target")
    return export_shared_target(load_target(path), side_words, STRIDE, folders.aside, origin, eight_bits)


def _write_drafter(folders: Folders, eight_bits: bool = True) -> tuple[Manifest, ...]:
    """Write one graph per grid that the drafter was trained for; raises ValueError for a single-grid drafter."""
    path, target = folders.checkpoint("drafter"), load_target(folders.checkpoint("guided"))
    sides = _sides_of(path, "drafter")
    round_to_scaled_rows(target)  # pictures are drawn with the rounded target
    origin = folders.origin("drafter" if eight_bits else FLOAT_DRAFTER, path, "drafter")
    drafter = load_drafter(path, target.decoder)
    return export_shared_drafter(drafter, sides, STRIDE, folders.aside, origin, eight_bits)


def _sides_of(path: Path, kind: str) -> list[int]:
    """Sides in pixels that a target or drafter was trained for; raises ValueError if it has a single grid."""
    grids = read(path, kind)["config"].get("grids")
    if not isinstance(grids, list | tuple) or not grids:
        raise ValueError(
            f"{path}: expected a {kind} of several grids, as `underpaint train world` makes it, got one of one grid; "
            "name --runs"
        )
    return [grid * STRIDE for grid in grids]


def _write_tokenizer(folders: Folders) -> tuple[Manifest, ...]:
    path = folders.checkpoint("tokenizer")
    return export_tokenizer(load_vq(path), folders.aside, folders.origin("tokenizer", path, "tokenizer"))


def _train_arguments(network: str, sides: _Sides) -> str:
    """Return the `underpaint train` arguments for a network between two sides: the stage `world`, or a recipe."""
    return "world" if world_stage(network, sides) else recipe_of(network, sides)


def _sampler(name: str, sides: _Sides) -> Exported:
    ends, (direction, losses) = between(*sides), TRAINED_BY[name]
    run = f"sampler_{direction}_{losses}{ends}"

    def write(folders: Folders) -> tuple[Manifest, ...]:
        path = folders.checkpoint(run)
        pair = Between.of(read(path, "sampler")["config"])
        origin = folders.origin(name + ends, path, "sampler", _train_arguments(name, sides))
        vq, codebook_folder = load_vq(folders.checkpoint("tokenizer")), folders.holding("codebook.npz")
        return (export_between(name + ends, load_sampler(path), pair, vq, codebook_folder, folders.aside, origin),)

    return Exported((run, "tokenizer"), write)


def _super_resolution(sides: _Sides) -> Exported:
    name = SUPER_RESOLUTION + between(*sides)

    def write(folders: Folders) -> tuple[Manifest, ...]:
        path = folders.checkpoint(name)
        pair = Between.of(read(path, "superres")["config"])
        origin = folders.origin(name, path, "superres", _train_arguments(SUPER_RESOLUTION, sides))
        vq, codebook_folder = load_vq(folders.checkpoint("tokenizer")), folders.holding("codebook.npz")
        return (export_between(name, load_super_resolution(path), pair, vq, codebook_folder, folders.aside, origin),)

    return Exported((name, "tokenizer"), write)


def _write_judge(folders: Folders) -> tuple[Manifest, ...]:
    path = folders.checkpoint("judge")
    return (export_judge(load_judge(path), folders.aside, folders.origin("judge", path, "judge")),)


def _write_reference(folders: Folders) -> tuple[Manifest, ...]:
    path = folders.checkpoint("judge")
    judge = load_judge(path)
    fold_norms(judge)  # the shipped judge is folded and rounded
    round_to_half(judge)
    origin = folders.origin("judge_reference", path, "judge")
    sheet = TexturedPictures(report=folders.report).sheet
    return (write_reference(judge, sheet, folders.aside, origin, SHIPPED_RESOLUTIONS, SCENES_PER_HALF),)


def _samplers(sides: _Sides) -> dict[str, Exported]:
    """All networks between two resolutions, by name."""
    networks = {name: _sampler(name, sides) for name in TRAINED_BY} | {SUPER_RESOLUTION: _super_resolution(sides)}
    return {name + between(*sides): export for name, export in networks.items()}


_BETWEEN: Final = {
    name: export for sides in (SHIPPED_RESOLUTIONS, (64, 256), (128, 256)) for name, export in _samplers(sides).items()
}


_TARGETS: Final[Mapping[str, float]] = {"target": 1.0, EIGHT_BIT_TARGET: 1.0, PAIR_TARGET: TEXTURED_GUIDANCE}
"""The exports that write targets, and the guidance that each target is drawn with."""
_WRITERS: Final[Mapping[str, Exported]] = {
    "tokenizer": Exported(("tokenizer",), _write_tokenizer),
    "target": Exported(("guided",), _write_target),
    PAIR_TARGET: Exported(("target",), partial(_write_target, name=PAIR_TARGET, run="target")),
    EIGHT_BIT_TARGET: Exported(("guided",), partial(_write_target, name=EIGHT_BIT_TARGET, eight_bits=True)),
    "drafter": Exported(("drafter", "guided"), _write_drafter),
    FLOAT_DRAFTER: Exported(("drafter", "guided"), partial(_write_drafter, eight_bits=False)),
    "judge": Exported(("judge",), _write_judge),
    "judge_reference": Exported(("judge",), _write_reference),
    **_BETWEEN,
}
EXPORTS: Final[Mapping[str, Exported]] = {name: _WRITERS[name] for name in (*USUAL, *OTHERS)}
"""All possible exports by name; the default ones first."""


def export_all(
    runs: Path,
    out: Path,
    names: tuple[str, ...] = (),
    report: Report = unheard,
    guidance: float | None = None,
) -> tuple[Manifest, ...]:
    """Export `names` from the checkpoints under `runs` (tokenizer/checkpoint.pt, ...) into `out`, with its index.

    The prompt words are always written. After any error `out` is unchanged: either all of `names` are written, or none.

    Args:
        runs: Folder of the training runs.
        out: The output folder.
        names: Exports to run; if empty, all that a folder needs.
        report: Callback that receives the progress.
        guidance: Guidance in the index's sampling, whose other values are the family's. None uses that of the target
            among `names`, or, if there is no target, keeps the one in `out` or uses the family's.

    Returns:
        The manifests of the written models.

    Raises:
        ValueError: Before any work, for an unknown name, two names that write the same files, a guidance out of range
            or an `out` of another family.
        FileNotFoundError: Before any work, for a missing checkpoint.
        ManifestError: `out` has an older format.
        ParityError: A graph does not match its torch module.
    """
    names = names or USUAL
    unknown = [name for name in names if name not in EXPORTS]
    if unknown:
        raise ValueError(
            f"export: there is no {', '.join(unknown)}; known: {', '.join(EXPORTS)}. "
            "A published checkpoint needs --kind"
        )
    same = [name for name in names if name in _TARGETS]
    if len(same) > 1:
        raise ValueError(f"export: {' and '.join(same)} write the same files; export one of them into each folder")
    missing = sorted({run for name in names for run in EXPORTS[name].runs if not _run(runs, run).is_file()})
    if missing:
        raise FileNotFoundError(
            f"no checkpoint at {_run(runs, missing[0])}"
            + (f", nor of {', '.join(missing[1:])}" if missing[1:] else "")
            + "; train them with `underpaint train world`, or say --runs"
        )
    if out.is_dir():
        read_manifests(out)
        _require_family(out)
    written: list[Manifest] = []
    if guidance is None:
        guidance = _guidance_of(names)
    sampling = None if guidance is None else replace(TEXTURED_SAMPLING, guidance=guidance)
    with staged(out, TEXTURED_FAMILY, sampling) as aside:
        shutil.copyfile(TABLES / SCENES, aside / SCENES)
        for done, name in enumerate(names):
            report("exporting", done, len(names), "models")
            written.extend(EXPORTS[name].write(Folders(runs, out, aside, report)))
    return tuple(written)


def _guidance_of(names: Sequence[str]) -> float | None:
    """Return the guidance of the target among `names`; None if there is no target."""
    return next((_TARGETS[name] for name in names if name in _TARGETS), None)


def _require_family(out: Path) -> None:
    """Raise ValueError if a folder has models of another family, whose words and codes differ."""
    family = family_of(out)
    if family not in ("", TEXTURED_FAMILY):
        raise ValueError(
            f"{out} holds models of the family {family}; export those of {TEXTURED_FAMILY} into a folder of their own"
        )

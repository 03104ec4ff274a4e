"""A folder of exported models as something to compare methods on: a target, its drafter, its codebook."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cache, partial
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from algos.arrays import IntArray
from algos.draft import Grid
from algos.rows import Sampler
from algos.spatial.target import GridTarget
from algos.step import Drafter, Target
from runtime.codes import Codes
from runtime.costs import costs_beside
from runtime.decoder import load_decoder
from runtime.drafter import OrtDrafter
from runtime.exported import RECORD, check_data, read_records
from runtime.grid_target import OrtGridTarget
from runtime.images import ImageDecoder
from runtime.resample import Resampler
from runtime.resamplers import read_codebook, read_table
from runtime.session import EngineError, SessionSettings, open_session
from runtime.studio import Clocked, Picture
from runtime.target import OrtTarget
from runtime.tensorrt_files import backend_module
from zoo.load import locate, manifest, names
from zoo.manifest import ManifestError

SAMPLER: Final = Sampler(guidance=4.0, top_k=1000)
"""LlamaGen's published sampling."""
MAX_NODES: Final = 64
NEEDED: Final = frozenset({"target", "drafter", "codebook", "neighbours"})
PARTS: Final = NEEDED | {"condition", "vq_decoder"}
"""All that decides what is drawn."""


def read_features(path: Path) -> NDArray[np.float32]:
    """Features [n, C] of a caption from an .npy file; EngineError where it holds no such array of finite numbers."""
    try:
        found = np.asarray(np.load(path, allow_pickle=False), dtype=np.float32)
    except (OSError, ValueError, TypeError, EOFError) as error:
        raise EngineError(f"{path}: expected features as numpy.save writes them ({error})") from error
    if found.ndim != 2 or not np.isfinite(found).all():
        raise EngineError(
            f"{path}: expected finite features [n, C], got {list(found.shape)}, or some that are not finite"
        )
    return found


@dataclass(frozen=True, slots=True)
class Condition:
    """What an exported model is asked for: ids (one class, or a prompt in its vocabulary) or a file of features."""

    text: str
    ids: tuple[int, ...] = ()
    features: Path | None = None

    def caption(self) -> str:
        """The condition as it was typed."""
        return self.text

    @classmethod
    def parse(cls, text: str) -> "Condition":
        """A number ("207"), numbers with commas between, or the path of an .npy file of features [n, C]."""
        if text.endswith(".npy"):
            if not Path(text).is_file():
                raise EngineError(f"condition: no file at {text}; save features [n, C] with numpy.save")
            read_features(Path(text))
            return cls(text, features=Path(text))
        try:
            return cls(text, tuple(int(part) for part in text.split(",")))
        except ValueError as error:
            raise EngineError(f"condition {text!r}: expected a class, ids with commas, or an .npy file") from error


@dataclass(slots=True)
class ExportedStudio:
    """The models behind a comparison; no judge, because no published one reads these pictures.

    decoder: None where the folder has no picture decoder: a Chameleon comes without, and still has its codes.

    Its `target`, `drafter`, `codes` and `max_nodes` are what `runtime.studio.draw` asks of a studio.
    """

    grid: Grid
    codes: Codes
    loaded_target: Any
    loaded_drafter: Any
    embed: Any
    decoder: ImageDecoder | None
    details: Mapping[str, Any]
    sampler: Sampler = SAMPLER
    max_nodes: int = MAX_NODES
    _targets: Callable[[Sampler], OrtTarget] = field(init=False)
    _drafters: Callable[[Sampler], OrtDrafter] = field(init=False)

    def __post_init__(self) -> None:
        self._targets = cache(partial(OrtTarget, self.loaded_target))
        self._drafters = cache(partial(OrtDrafter, self.loaded_drafter))

    def described(self) -> Mapping[str, Any]:
        """The models and the engine, as JSON holds them."""
        return self.details

    def target(self, prompt: Condition, sampler: Sampler) -> Clocked[Target]:
        """The target under this condition."""
        target = self._conditioned(prompt, sampler)
        return Clocked(target, target.engine.spent)

    def grid_target(self, prompt: Condition, sampler: Sampler) -> Clocked[GridTarget]:
        """The target under this condition, cell by cell in any order."""
        target = self._conditioned(prompt, sampler)
        return Clocked(OrtGridTarget(target), target.engine.spent)

    def low_target(self, prompt: Condition, sampler: Sampler, ratio: int) -> Clocked[GridTarget]:
        """There is none in such a folder: EngineError."""
        raise EngineError("an exported folder holds one resolution; multi-scale methods need the shipped models")

    def resampler(self, kind: str, ratio: int) -> Resampler:
        """There is none in such a folder: EngineError."""
        raise EngineError("an exported folder holds one resolution; multi-scale methods need the shipped models")

    def _conditioned(self, prompt: Condition, sampler: Sampler) -> OrtTarget:
        target = self._targets(sampler)
        if prompt.features is None:
            target.condition(np.array(prompt.ids))
        else:
            rows, padding = self._embedded(prompt.features)
            target.condition_rows(rows, padding)
        return target

    def _embedded(self, path: Path) -> tuple[NDArray[np.float32], int]:
        """Rows of the condition graph, and how many leading positions a short caption leaves empty."""
        if self.embed is None:
            raise EngineError(f"{path}: this model takes ids, not features")
        prefix, width = self.embed.get_inputs()[0].shape
        given = read_features(path)
        if given.shape[1] != width or not 1 <= given.shape[0] <= prefix:
            raise EngineError(f"{path}: expected features [1 to {prefix}, {width}], got {list(given.shape)}")
        padded = np.zeros((prefix, width), dtype=np.float32)
        padded[prefix - given.shape[0] :] = given
        return self.embed.run(None, {"features": padded})[0], prefix - given.shape[0]

    def drafter(self, sampler: Sampler) -> Clocked[Drafter]:
        """The drafter."""
        drafter = self._drafters(sampler)
        return Clocked(drafter, drafter.engine.spent)

    def picture(self, tokens: IntArray) -> Picture:
        """The picture that tokens [cells] stand for; EngineError without a `decoder`."""
        if self.decoder is None:
            raise EngineError("this folder holds no picture decoder; export its tokenizer (--kind vq or chameleon-vq)")
        return self.decoder(tokens, self.grid)


def open_exported(folder: Path, backend: str = "cpu", settings: SessionSettings | None = None) -> ExportedStudio:
    """Load a target, its drafter and its tokenizer from an export folder.

    backend: "cpu" for ONNX Runtime, "tensorrt" or "tensorrt-rtx" for engines built from the same graphs.
    Raises ManifestError or EngineError, naming what is missing and how to make it.
    """
    known = names(folder) if folder.is_dir() else ()
    missing = sorted(NEEDED - set(known))
    if missing or not (folder / RECORD).is_file():
        raise ManifestError(
            f"{folder}: {', '.join(missing) or RECORD} missing; export a target, its drafter and its tokenizer "
            "(--kind vq, or chameleon-vq for a Chameleon's) into this folder"
        )
    for name in ("target", "drafter"):
        check_data(folder, name)
    target, drafter = (_loaded(name, folder, backend, settings) for name in ("target", "drafter"))
    decoder = ImageDecoder("vq_decoder", folder, settings) if "vq_decoder" in known else None
    codebook = read_codebook(folder)
    near = read_table("neighbours", "neighbours", folder).astype(np.int64)
    sizes = {target.shape.vocab_size, drafter.shape.vocab_size, codebook.shape[0]}
    sizes |= {decoder.vocab_size} if decoder is not None else set()
    if len(sizes) != 1 or target.shape.grid != drafter.shape.grid or target.shape.features != drafter.shape.features:
        raise EngineError(f"{folder}: target, drafter and tokenizer do not belong together (codes {sorted(sizes)})")
    embed = open_session(locate("condition", "condition", folder).path, settings) if "condition" in known else None
    hashes = {name: manifest(name, folder).sha256 for name in sorted(PARTS & set(known))}
    outside = [record.data for name, record in read_records(folder).items() if name in hashes]
    hashes |= {data.file: data.sha256 for data in outside if data is not None}
    details = {
        "engine": backend,
        "precision": target.shape.precision,
        "grid": list(target.shape.grid),
        "sha256": hashes,
    }
    sampler = SAMPLER if target.shape.guided else replace(SAMPLER, guidance=1.0)
    return ExportedStudio(
        target.shape.grid,
        Codes(near, codebook, costs_beside(folder)),
        target,
        drafter,
        embed,
        decoder,
        details,
        sampler,
    )


def _loaded(name: str, folder: Path, backend: str, settings: SessionSettings | None) -> Any:
    if backend == "cpu":
        return load_decoder(name, name, folder, settings)
    backend_module(backend)
    from runtime.tensorrt_engine import load_tensorrt  # needs PyTorch for its memory

    return load_tensorrt(name, name, folder, backend)

"""The target of a second export folder, at a fraction of the grid, for methods that draft small and verify large."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

from underpaint.algos.rows import SamplingParams
from underpaint.algos.spatial.resolution import ResolutionMap
from underpaint.artifacts.manifest import ManifestError
from underpaint.artifacts.model_index import INDEX
from underpaint.runtime.engines.context import EngineContext, EngineError
from underpaint.runtime.engines.target import EngineTarget
from underpaint.runtime.exported import hashes_of
from underpaint.runtime.resampling.registry import codebook_digest, models_behind, open_resampler, read_codebook
from underpaint.runtime.resampling.resampler import Resampler
from underpaint.zoo.load import manifest, names

NEEDED: Final = frozenset({"target", "codebook"})
_TOKENIZER: Final = frozenset({"vq_decoder", "vq_encoder"})


@dataclass(slots=True)
class Low:
    """A target that draws the same codes on a smaller grid, and what lies between the two resolutions.

    folder: the export of the high target, whose tokenizer and samplers serve. hashes: of the low models.
    """

    target: EngineTarget
    grids: ResolutionMap
    folder: Path
    hashes: Mapping[str, str]
    settings: EngineContext
    _resamplers: dict[str, Resampler] = field(default_factory=dict)

    def to_dict(self) -> dict[str, Any]:
        """It as JSON holds it."""
        return {"grid": list(self.grids.low), "sha256": dict(self.hashes)}

    def check(self, ratio: int) -> None:
        """EngineError unless a method drafts at this fraction of the side."""
        if ratio != self.grids.ratio:
            raise EngineError(
                f"ratio {ratio}: --low holds a target at 1 / {self.grids.ratio} of the side; say --set "
                f"METHOD.ratio={self.grids.ratio}, or give a folder whose grid is "
                f"{' x '.join(str(side // ratio) for side in self.grids.high)}"
            )

    def resampler(self, kind: str) -> tuple[Resampler, Mapping[str, str]]:
        """The sampler `kind` of `resampling.registry`, and the hashes of the models behind it; see `open_resampler`."""
        lacking = sorted(_TOKENIZER - set(names(self.folder)))
        if lacking:
            raise EngineError(
                f"{self.folder} holds no {' and no '.join(lacking)}, between two resolutions; export its tokenizer "
                "into it (--kind vq or chameleon-vq)"
            )
        stride = int(manifest("vq_encoder", self.folder).settings["stride"])
        sides = self.grids.low.width * stride, self.grids.high.width * stride
        if kind not in self._resamplers:
            self._resamplers[kind] = open_resampler(kind, self.grids, self.folder, self.settings, sides)
        return self._resamplers[kind], hashes_of(self.folder, models_behind(kind, sides))


def open_low(low: Path, folder: Path, high: EngineTarget, backend: str, settings: EngineContext | None = None) -> Low:
    """Load the target of the export `low`, to draft for the target `high` of the export `folder`.

    Raises ManifestError where a model is missing, and EngineError where the two do not belong together: another
    codebook, a grid that is no fraction, another kind of condition.
    """
    missing = sorted(NEEDED - set(names(low))) if low.is_dir() else sorted(NEEDED)
    if missing or not (low / INDEX).is_file():
        raise ManifestError(
            f"--low {low}: {', '.join(missing) or INDEX} missing; export the smaller target and the tokenizer of both "
            "into this folder"
        )
    ours, theirs = (codebook_digest(read_codebook(each)) for each in (folder, low))
    if ours != theirs:
        raise EngineError(
            f"--low {low}: expected the codebook {ours[:12]} of {folder}, got {theirs[:12]}; two resolutions share one "
            "tokenizer: export the same file into both folders, in one precision"
        )
    # The models take turns: threads of one must not hold the cores that the next needs.
    own = replace(settings or EngineContext(), lingering=False)
    target = EngineTarget.open("target", SamplingParams(), low, own, backend)
    _check_pair(low, target, high)
    try:
        grids = ResolutionMap(target.grid, high.grid)
    except ValueError as error:
        raise EngineError(f"--low {low}: {error}; choose a target of a fraction of the side") from error
    if grids.ratio < 2:
        raise EngineError(f"--low {low}: expected a smaller grid than {_told(high)}, got {_told(target)}")
    return Low(target, grids, folder, hashes_of(low, ("target", "condition", "codebook")), own)


def _check_pair(low: Path, target: EngineTarget, high: EngineTarget) -> None:
    """EngineError unless both draw as many codes under the same conditions."""
    if target.vocab_size != high.vocab_size:
        raise EngineError(
            f"--low {low}: expected a target of {high.vocab_size} codes, got one of {target.vocab_size}; "
            "choose two of one tokenizer"
        )
    if target.encoder.accepts() != high.encoder.accepts():
        raise EngineError(
            f"--low {low}: expected a target that takes {high.encoder.accepts()}, as the larger one does, got one that "
            f"takes {target.encoder.accepts()}; one condition must serve both"
        )


def _told(target: EngineTarget) -> str:
    return " x ".join(map(str, target.grid))

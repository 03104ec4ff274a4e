"""The methods that draft at a lower resolution (MuLo-SD, arXiv 2601.05149), with their settings by preset."""

from collections.abc import Mapping
from typing import Final

from underpaint.runtime.methods.method_config import MethodSpec, Preset
from underpaint.runtime.methods.multi_scale.method import MuloConfig
from underpaint.runtime.methods.registry import METHODS

_EARLIER: Final = "measured on earlier models (git show cd40511:docs/results/mulo-sd.md)"
_LOW_IN_8_BITS: Final = "measured: on 48 prompts apart (docs/explanation/mulo-sd.md); not in the papers"
_MEASURED: Final[Mapping[str, str]] = {
    "draft_window": "measured: on 100 prompts apart from those reported (docs/explanation/scenes.md)",
    "tau, window": "measured: on 40 prompts apart from those reported (docs/explanation/scenes.md)",
    "k": "measured: on 12 prompts apart from those reported (docs/explanation/scenes.md)",
    "radius": _EARLIER,
    "draft_int8": _LOW_IN_8_BITS,
}
_GUESS: Final = "our guess: the paper does not publish it"
_MULO: Final = "arXiv 2601.05149"


def _mulo(
    name: str,
    summary: str,
    tuned: MuloConfig,
    paper: MuloConfig,
    sources: Mapping[str, str],
    measured: Mapping[str, str] = _MEASURED,
) -> MethodSpec:
    guessed = {
        "tau": f"{_GUESS} (it was chosen to equal LANTERN's GenEval score)",
        "k, rows": _GUESS,
        "draft_int8": f"{_MULO}: nothing is said of a low target in another precision",
    }
    return MethodSpec(
        name,
        summary,
        Preset(tuned, tuned.at_zero(), measured),
        Preset(paper, paper.at_zero(), {**guessed, **sources}),
    )


_V1: Final = {
    "order, window": f"{_MULO}v1: the rejected cells and those around them, redrawn serially in raster order",
    "radius": f"{_MULO}v1: l = 1, a neighbourhood of 3 x 3",
    "resampler": f"{_MULO}v1: row-causal networks between the resolutions",
}
_ISLANDS: Final = {
    "order": f"{_MULO} (CVPR 2026): 8-connected islands, redrawn side by side",
    "window, draft_window": f"{_MULO} (CVPR 2026): ZipAR's order in islands and in drafting; the width is our guess",
    "radius": f"{_MULO}: l = 1",
    "resampler": f"{_MULO} (CVPR 2026): super-resolution through pictures, the default there",
}
_PAPER_V1: Final = MuloConfig(tau=0.3, k=30, radius=1, order="serial", window=None, draft_int8=False)

for _spec in (
    _mulo(
        "mulo",
        "MuLo-SD, first version: drafted at half the resolution, rejected cells and those around them redrawn serially",
        MuloConfig(),
        _PAPER_V1,
        _V1,
        {
            "tau, k": "measured: on 12 prompts apart, for 'mulo-islands' then",
            "radius, window": _EARLIER,
            "draft_int8": _LOW_IN_8_BITS,
        },
    ),
    _mulo(
        "mulo-islands",
        "MuLo-SD with row fronts: in drafting, and in repair of islands side by side",
        MuloConfig(tau=0.6, radius=0, order="islands", window=1, draft_window=4),
        MuloConfig(tau=0.3, k=30, order="islands", window=8, draft_window=8, resampler="superres", draft_int8=False),
        _ISLANDS,
    ),
    _mulo(
        "mulo-raster",
        "MuLo-SD's ablation: everything after the first rejected cell is redrawn",
        MuloConfig(reject="raster", window=None),
        MuloConfig(tau=0.3, k=30, reject="raster", window=None, draft_int8=False),
        {**_V1, "reject": f"{_MULO}: the ablation of local repair"},
        {
            "tau, k, radius, window": "not tuned: an ablation, at the threshold of 'mulo'",
            "draft_int8": _LOW_IN_8_BITS,
        },
    ),
):
    METHODS.register(_spec)

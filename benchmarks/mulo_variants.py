"""What the ablation of MuLo-SD varies, and which of the paper's orderings that tells (arXiv 2601.05149)."""

from dataclasses import dataclass, replace
from typing import Final

from underpaint.runtime.evaluation.comparison import BASELINE
from underpaint.runtime.methods.registry import resolve
from underpaint.runtime.resampling.registry import SUPER_RESOLUTION
from underpaint.runtime.resampling.resampler import FILTERS

TEMPERATURE: Final = 1.0


@dataclass(frozen=True)
class Variant:
    """A line of the table. match: the label whose share of kept cells its tau is chosen for."""

    group: str
    label: str
    method: str
    settings: tuple[str, ...] = ()
    match: str | None = None


STARTS: Final = {
    "mulo": ("tau=0.3", "window=none"),
    "mulo-raster": ("tau=0.3",),
    "mulo-islands": ("tau=0.3", "radius=1", "draft_window=2"),
}
"""What the variants start from: serial repair in raster order, so that each part's effect is seen by itself. Settings
that are given for all of them come after, and may make two variants equal."""
TWO_ROWS: Final = ("rows=2",)
VARIANTS: Final = (
    Variant("control", BASELINE, BASELINE),
    *(Variant("control", f"ZipAR, window {window}", "zipar", (f"window={window}",)) for window in (1, 2, 4, 8)),
    Variant("control", "ZipAR, window 2, adaptive", "zipar", ("window=2", "adaptive=true")),
    Variant("control", "LANTERN", "lantern"),
    Variant("rejection", "local + expansion", "mulo", TWO_ROWS),
    Variant("rejection", "plain local, matched", "mulo", (*TWO_ROWS, "radius=0"), "local + expansion"),
    Variant("rejection", "plain local, same tau", "mulo", (*TWO_ROWS, "radius=0")),
    Variant("rejection", "local + radius 2, matched", "mulo", (*TWO_ROWS, "radius=2"), "local + expansion"),
    Variant("rejection", "raster, matched", "mulo-raster", TWO_ROWS, "local + expansion"),
    Variant("rejection", "raster, same tau", "mulo-raster", TWO_ROWS),
    Variant("pooling", "pooled", "mulo"),
    Variant("pooling", "pooled over 100 codes, matched", "mulo", ("k=100",), "pooled"),
    Variant("pooling", "not pooled, matched", "mulo", ("k=none",), "pooled"),
    Variant("pooling", "not pooled, same tau", "mulo", ("k=none",)),
    Variant("rule", "LANTERN's rule", "mulo", ("rule=lantern",)),
    Variant("rule", "exact rule", "mulo", ("rule=exact",)),
    *(
        Variant("sampler", f"sampler {kind}", "mulo", (f"resampler={kind}",))
        for kind in (*FILTERS, SUPER_RESOLUTION, "latent", "latent-ce", "latent-gan")
    ),
    *(
        Variant("way down", f"sampler {kind}, two rows", "mulo", (*TWO_ROWS, f"resampler={kind}"))
        for kind in ("latent-down-pixel", "latent-down-gan")
    ),
    Variant("order", "islands", "mulo", ("order=islands",)),
    Variant("order", "islands, row fronts", "mulo", ("order=islands", "window=2")),
    Variant("order", "serial, row fronts", "mulo", ("window=2",)),
    Variant("keys", "islands, two rows, stale", "mulo", (*TWO_ROWS, "order=islands")),
    Variant("keys", "islands, two rows, recompute", "mulo", (*TWO_ROWS, "order=islands", "keys=recompute")),
    Variant("drafting", "row fronts in drafting too", "mulo-islands"),
    Variant("drafting", "row fronts in drafting, no repair", "mulo-islands", ("tau=0",)),
    Variant("drafting", "everywhere, radius 0", "mulo-islands", ("radius=0",)),
    Variant("drafting", "everywhere, window 1, radius 0", "mulo-islands", ("radius=0", "window=1", "draft_window=1")),
    Variant("drafting", "one row a cycle", "mulo", ("rows=1",)),
)
ORDERINGS: Final = (
    ("expansion beats plain local at matched acceptance", "local + expansion", "plain local, matched"),
    ("local + expansion beats raster at matched acceptance", "local + expansion", "raster, matched"),
    ("pooling beats no pooling at matched acceptance", "pooled", "not pooled, matched"),
    ("pixel loss beats token cross-entropy", "sampler latent", "sampler latent-ce"),
    ("the adversarial term beats pixel loss alone", "sampler latent-gan", "sampler latent"),
    ("way down: pixel loss beats token cross-entropy", "sampler latent-down-pixel, two rows", "local + expansion"),
    (
        "way down: the adversarial term beats pixel loss alone",
        *("sampler latent-down-gan, two rows", "sampler latent-down-pixel, two rows"),
    ),
    ("the pixel sampler beats the latent one", "sampler bicubic", "sampler latent-gan"),
    ("the pixel sampler beats the latent one without an adversarial term", "sampler bicubic", "sampler latent"),
    ("recomputed keys beat stale ones", "islands, two rows, recompute", "islands, two rows, stale"),
)
"""Of quality: the claim, the better variant and the worse one."""
FASTER: Final = (
    ("raster rejection is slower at the same tau", "local + expansion", "raster, same tau"),
    ("islands are faster than serial repair", "islands", "pooled"),
    ("row fronts are faster still", "row fronts in drafting too", "islands"),
    ("row fronts in repair are faster than raster order", "serial, row fronts", "pooled"),
    ("row fronts in drafting too are faster than in repair", "row fronts in drafting too", "islands, row fronts"),
    ("ZipAR alone is faster than serial MuLo-SD", "ZipAR, window 4", "pooled"),
    ("islands with row fronts beat ZipAR", "row fronts in drafting too", "ZipAR, window 4"),
)
"""Of speed: the claim, the faster variant and the slower one."""


def chosen(labels: list[str] | None, settings: list[str]) -> tuple[Variant, ...]:
    """The variants of these labels, and what theirs are matched with; all of them where none is named.

    settings: of every method of MuLo-SD, before what a variant changes itself; ValueError on one that it does not know.
    """
    for method in STARTS:
        resolve(method, TEMPERATURE, None, settings)
    known = {one.label: one for one in VARIANTS}
    asked = set(known if labels is None else labels) | {BASELINE}
    asked |= {match for label in asked if (match := known[label].match) is not None}
    return tuple(
        replace(one, settings=(*STARTS[one.method], *settings, *one.settings)) if one.method in STARTS else one
        for one in VARIANTS
        if one.label in asked
    )

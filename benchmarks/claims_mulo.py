"""The claims of MuLo-SD that models of this size can test."""

from benchmarks.claim_parts import (
    ABLATION,
    MULO,
    MULO_COMPARED,
    SAMPLERS,
    Claim,
    faster,
    faster_part,
    keeps_accuracy,
    keeps_likelihood,
    needed_part,
    over_ar,
)
from benchmarks.verdicts import mean_and_half

_GENEVAL = "GenEval 77.7 to 76.0 (Tar-1.5B, 512 px)"
_PARTS = "needed for quality"


def _needed(text: str, better: str, worse: str, published: str = _PARTS) -> Claim:
    return needed_part(MULO, ABLATION, text, better, worse, published)


def _quicker(text: str, better: str, worse: str, published: str) -> Claim:
    return faster_part(MULO, ABLATION, text, better, worse, published)


def _sampler(text: str, better: str, worse: str, name: str = "up_psnr_scene") -> Claim:
    measure = mean_and_half(SAMPLERS, {"kind": better}, {"kind": worse}, name)
    remark = "PSNR to the scene in dB, on the way up. Pairs would tell more."
    return Claim(MULO, text, _PARTS, (SAMPLERS,), measure, bound=0.0, form="+.2f", remark=remark)


MULO_CLAIMS = (
    over_ar(MULO, "mulo", 1, 1.22, "1.22x (Tar-1.5B, 512 px, first version)"),
    faster(MULO, "mulo", "eagle2", 1, "1.69x (1.22 / 0.72, first version)", 1.22 / 0.72),
    faster(MULO, "mulo", "lantern", 1, "1.13x (1.22 / 1.08); 0.88x on LlamaGen-XL (1.40 / 1.59)", 1.22 / 1.08),
    faster(MULO, "lantern", "eagle2", 1, "1.50x (1.08 / 0.72, first version)", 1.08 / 0.72),
    keeps_accuracy(MULO, "mulo", MULO_COMPARED, "", _GENEVAL),
    keeps_accuracy(MULO, "mulo-islands", MULO_COMPARED, "", _GENEVAL),
    keeps_likelihood(MULO, "mulo", _GENEVAL),
    keeps_likelihood(MULO, "mulo-islands", _GENEVAL),
    _needed("Neighbourhood expansion beats plain local repair", "local + expansion", "plain local, matched"),
    _needed("Local repair with expansion beats raster rejection", "local + expansion", "raster, matched"),
    _needed("A pooled threshold beats one that is not", "pooled", "not pooled, matched", "pooling adds little"),
    _needed("Up-sampler: pixel loss beats token cross-entropy", "sampler latent", "sampler latent-ce"),
    _sampler("Up-sampler: pixel loss beats token cross-entropy, by PSNR.", "latent", "latent-ce"),
    _needed("Up-sampler: the adversarial term beats pixel loss alone", "sampler latent-gan", "sampler latent"),
    _needed(
        "Down-sampler: pixel loss beats token cross-entropy", "sampler latent-down-pixel, two rows", "local + expansion"
    ),
    _needed(
        "Down-sampler: the adversarial term beats pixel loss alone",
        "sampler latent-down-gan, two rows",
        "sampler latent-down-pixel, two rows",
    ),
    _needed("Pixels beat latents between the resolutions", "sampler bicubic", "sampler latent-gan", "its default"),
    _quicker(
        "Raster rejection at the same threshold is slower than local repair.",
        "local + expansion",
        "raster, same tau",
        "raster needs a very low threshold",
    ),
    Claim(
        MULO,
        "The gain over plain decoding grows with resolution (64, 128, 256 px).",
        "1.22x at 512 px, 1.68x at 1,024 px (first version); 1.94x, 3.90x (CVPR)",
        needs="targets and samplers of 256 px, and of 32 px to draft for 64. None ship: a target of 256 px attends to "
        "1,031 positions and has to be trained on a GPU (docs/how-to/train.md)",
    ),
    _quicker("Rejected islands drawn side by side are faster than serial repair.", "islands", "pooled", "faster"),
    _quicker("Row fronts inside the repair are faster than raster order.", "serial, row fronts", "pooled", "faster"),
    _quicker(
        "Row fronts in drafting too are faster than in the repair alone.",
        "row fronts in drafting too",
        "islands, row fronts",
        "with islands, most of 5.33x (Tar-7B, 1,024 px)",
    ),
    faster(
        MULO, "mulo-islands", "mulo", 1, "faster", remark="Islands, radius 0 and row fronts in drafting, all three."
    ),
    faster(MULO, "zipar", "mulo", 1, "1.54x (ZipAR-16 1.88 / 1.22, first version)", 1.88 / 1.22),
    faster(MULO, "mulo-islands", "zipar", 1, "not compared on one model"),
)

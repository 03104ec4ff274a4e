"""The claims of MuLo-SD that models of this size can test."""

from benchmarks.claim_parts import (
    EMOJI,
    MULO,
    MULO_COMPARED,
    SAMPLERS,
    Claim,
    World,
    faster,
    keeps_accuracy,
    keeps_likelihood,
    over_ar,
)
from benchmarks.verdicts import mean_and_half, ordering, ratio

GENEVAL = "GenEval 77.7 to 76.0 (Tar-1.5B, 512 px)"
_PARTS = "needed for quality"
_OVER_LANTERN = "1.13x (1.22 / 1.08); 0.88x on LlamaGen-XL (1.40 / 1.59)"


_MEASURES = {"prompt_accuracy": "accuracy", "attribute_log_probability": "the judge's log-probability"}


def _needed(
    text: str,
    better: str,
    worse: str,
    published: str = _PARTS,
    name: str = "prompt_accuracy",
    world: World = EMOJI,
    file: str = "",
) -> Claim:
    """file: the record; the world's ablation where none is named."""
    held = file or world.ablation
    told, measure = f"{text}, by {_MEASURES[name]}.", ordering(held, better, worse, name)
    return Claim(MULO + world.suffix, told, published, (held,), measure, bound=0.0, form="+.3f")


def _quicker(text: str, better: str, worse: str, published: str, world: World = EMOJI, file: str = "") -> Claim:
    held = file or world.ablation
    measure = ratio(held, {"method": better}, {"method": worse})
    return Claim(MULO + world.suffix, text, published, (held,), measure)


def needed_claims(world: World, *names: str) -> tuple[Claim, ...]:
    """What MuLo-SD needs for quality, by each of these figures; `world` has the two samplers that this asks for."""
    pairs = (
        ("Neighbourhood expansion beats plain local repair", "local + expansion", "plain local, matched", _PARTS),
        ("Local repair with expansion beats raster rejection", "local + expansion", "raster, matched", _PARTS),
        ("A pooled threshold beats one that is not", "pooled", "not pooled, matched", "pooling adds little"),
        ("Up-sampler: pixel loss beats token cross-entropy", "sampler latent", "sampler latent-ce", _PARTS),
    )
    return tuple(_needed(*pair, name, world) for pair in pairs for name in names)


def loss_claims(world: World, *names: str, file: str = "") -> tuple[Claim, ...]:
    """What the losses of samplers that do not ship bring, by each of these figures; file: see `_needed`."""
    pairs = (
        ("Up-sampler: the adversarial term beats pixel loss alone", "sampler latent-gan", "sampler latent"),
        (
            "Down-sampler: pixel loss beats token cross-entropy",
            *("sampler latent-down-pixel, two rows", "local + expansion"),
        ),
        (
            "Down-sampler: the adversarial term beats pixel loss alone",
            *("sampler latent-down-gan, two rows", "sampler latent-down-pixel, two rows"),
        ),
    )
    return tuple(_needed(*pair, _PARTS, name, world, file) for pair in pairs for name in names)


def order_claims(world: World) -> tuple[Claim, ...]:
    """What raster rejection costs, and what drawing islands side by side saves."""
    return (
        _quicker(
            "Raster rejection at the same threshold is slower than local repair.",
            "local + expansion",
            "raster, same tau",
            "raster needs a very low threshold",
            world,
        ),
        _quicker(
            "Rejected islands drawn side by side are faster than serial repair.", "islands", "pooled", "faster", world
        ),
    )


def front_claims(world: World = EMOJI, file: str = "") -> tuple[Claim, ...]:
    """What row fronts save; file: see `_needed`."""
    return (
        _quicker(
            "Row fronts inside the repair are faster than raster order.",
            *("serial, row fronts", "pooled", "faster", world, file),
        ),
        _quicker(
            "Row fronts in drafting too are faster than in the repair alone.",
            *("row fronts in drafting too", "islands, row fronts"),
            *("with islands, most of 5.33x (Tar-7B, 1,024 px)", world, file),
        ),
    )


def pixel_claims(world: World, file: str) -> tuple[Claim, ...]:
    """Pictures in place of tokens between the resolutions, beside the latent sampler that ships."""
    text, pair = "Pixels beat latents between the resolutions", ("sampler bicubic", "sampler latent", "its default")
    return tuple(_needed(text, *pair, name, world, file) for name in _MEASURES)


def serial_claims(world: World) -> tuple[Claim, ...]:
    """Serial MuLo-SD beside draft trees."""
    return (
        faster(MULO, "mulo", "eagle2", 1, "1.69x (1.22 / 0.72, first version)", 1.22 / 0.72, world=world),
        faster(MULO, "mulo", "lantern", 1, _OVER_LANTERN, 1.22 / 1.08, world=world),
    )


def resolution_claim(world: World) -> Claim:
    """No record answers it."""
    return Claim(
        MULO + world.suffix,
        "The gain of MuLo-SD over plain decoding grows with resolution (64, 128, 256 px).",
        "1.22x at 512 px, 1.68x at 1,024 px (first version); 1.94x, 3.90x (CVPR)",
        needs="targets and samplers of 256 px, and of 32 px to draft for 64. None ship: a target of 256 px draws 1,024 "
        "tokens and has to be trained on a GPU (docs/how-to/train.md)",
        remark="Other methods' gains from 64 to 128 px stand in rows of their own." if world.suffix else "",
    )


def _sampler(text: str, better: str, worse: str, name: str = "up_psnr_scene") -> Claim:
    measure = mean_and_half(SAMPLERS, {"kind": better}, {"kind": worse}, name)
    remark = "PSNR to the scene in dB, on the way up. Pairs would tell more."
    return Claim(MULO, text, _PARTS, (SAMPLERS,), measure, bound=0.0, form="+.2f", remark=remark)


MULO_CLAIMS = (
    over_ar(MULO, "mulo", 1, 1.22, "1.22x (Tar-1.5B, 512 px, first version)"),
    *serial_claims(EMOJI),
    faster(MULO, "lantern", "eagle2", 1, "1.50x (1.08 / 0.72, first version)", 1.08 / 0.72),
    keeps_accuracy(MULO, "mulo", MULO_COMPARED, "", GENEVAL),
    keeps_accuracy(MULO, "mulo-islands", MULO_COMPARED, "", GENEVAL),
    keeps_likelihood(MULO, "mulo", GENEVAL),
    keeps_likelihood(MULO, "mulo-islands", GENEVAL),
    *needed_claims(EMOJI, "prompt_accuracy"),
    _sampler("Up-sampler: pixel loss beats token cross-entropy, by PSNR.", "latent", "latent-ce"),
    *loss_claims(EMOJI, "prompt_accuracy"),
    _needed("Pixels beat latents between the resolutions", "sampler bicubic", "sampler latent-gan", "its default"),
    *order_claims(EMOJI),
    resolution_claim(EMOJI),
    *front_claims(),
    faster(
        MULO, "mulo-islands", "mulo", 1, "faster", remark="Islands, radius 0 and row fronts in drafting, all three."
    ),
    faster(MULO, "zipar", "mulo", 1, "1.54x (ZipAR-16 1.88 / 1.22, first version)", 1.88 / 1.22),
    faster(MULO, "mulo-islands", "zipar", 1, "not compared on one model"),
)

"""Opens up- and down-samplers by name from a folder of models, and rejects those made for other models."""

from collections.abc import Mapping
from hashlib import sha256
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray

from underpaint.algos.registry import suggest
from underpaint.algos.spatial.resolution import ResolutionMap
from underpaint.artifacts.manifest import ManifestError
from underpaint.artifacts.model_families import TEXTURED_FAMILY
from underpaint.artifacts.model_index import family_of
from underpaint.runtime.engines.context import EngineContext, EngineError
from underpaint.runtime.engines.images import ImageDecoder, ImageEncoder
from underpaint.runtime.resampling.resampler import (
    FILTERS,
    Enlarger,
    FilterEnlarger,
    LearnedEnlarger,
    PixelResampler,
    Resampler,
    TokenNetwork,
    TokenResampler,
)
from underpaint.zoo.load import FOLDER, Located, locate, manifest, names, read_codebook
from underpaint.zoo.resolutions import SHIPPED_RESOLUTIONS, between, pair_options

SUPER_RESOLUTION: Final = "superres"
LATENT: Final[Mapping[str, tuple[str, str]]] = {
    "latent": ("sampler_up", "sampler_down"),
    "latent-ce": ("sampler_up_ce", "sampler_down"),
    "latent-gan": ("sampler_up_gan", "sampler_down"),
    "latent-down-pixel": ("sampler_up", "sampler_down_pixel"),
    "latent-down-gan": ("sampler_up", "sampler_down_gan"),
}
"""The up and down networks of each latent kind. Kinds differ in the losses of one of the two: sampler_up is trained
through pictures, sampler_down on tokens only. A draft of the whole image at once needs no down network."""
TRAINED_BY: Final[Mapping[str, tuple[str, str]]] = {
    "sampler_up": ("up", "pixel"),
    "sampler_up_ce": ("up", "ce"),
    "sampler_up_gan": ("up", "gan"),
    "sampler_down": ("down", "ce"),
    "sampler_down_pixel": ("down", "pixel"),
    "sampler_down_gan": ("down", "gan"),
}
"""Direction and losses of each network in `LATENT`, as arguments of `underpaint train sampler`."""
_WORLD_STAGES: Final = ("sampler_up_ce", "sampler_up_pixel", "sampler_down_ce", SUPER_RESOLUTION)
"""The networks that `underpaint train world` trains for textured scenes."""
RESAMPLERS: Final = (*FILTERS, SUPER_RESOLUTION, *LATENT)
"""The kinds that `open_resampler` accepts: pixel kinds, then latent ones."""


def codebook_digest(codebook: NDArray[np.float32]) -> str:
    """Hex SHA-256 of unit code vectors [V, C] as stored; a sampler's manifest must name it."""
    return sha256(np.ascontiguousarray(codebook, dtype="<f4").tobytes()).hexdigest()


def models_behind(kind: str, sides: tuple[int, int] = SHIPPED_RESOLUTIONS) -> tuple[str, ...]:
    """Names of the models in a folder that the sampler `kind` runs between two sides in pixels."""
    ends = between(*sides)
    if kind in LATENT:
        up, down = LATENT[kind]
        return up + ends, down + ends
    learned = (SUPER_RESOLUTION + ends,) if kind == SUPER_RESOLUTION else ()
    return ("vq_decoder", *learned, "vq_encoder")


def recipe_of(network: str, sides: tuple[int, int] = SHIPPED_RESOLUTIONS) -> str:
    """The arguments of `underpaint train` that make a network of `TRAINED_BY`, or `SUPER_RESOLUTION`, for two sides."""
    options = pair_options(*sides)
    if network == SUPER_RESOLUTION:
        return f"superres{options}"
    direction, losses = TRAINED_BY[network]
    return f"sampler --direction {direction} --losses {losses}{options}"


def open_resampler(
    kind: str,
    grids: ResolutionMap,
    folder: Path = FOLDER,
    settings: EngineContext | None = None,
    sides: tuple[int, int] = SHIPPED_RESOLUTIONS,
) -> Resampler:
    """Open the sampler `kind` of `RESAMPLERS` between two grids whose pictures have these sides in pixels.

    Raises ValueError before any work if the kind is unknown, a model is missing or damaged, or a sampler was trained
    for another pair of grids or another codebook.
    """
    if kind not in RESAMPLERS:
        raise ValueError(f"resampler: there is no '{kind}'; {suggest(kind, RESAMPLERS)}")
    if kind in LATENT:
        up, down = (TokenNetwork(one.path, settings) for one in locate_networks(kind, grids, folder, sides))
        return TokenResampler(grids, read_codebook(folder).shape[0], up, down)
    enlarger: Enlarger
    if kind == SUPER_RESOLUTION:
        network = _fitting(SUPER_RESOLUTION, SUPER_RESOLUTION, grids, read_codebook(folder), folder, sides)
        enlarger = LearnedEnlarger(network.path, settings)
    else:
        enlarger = FilterEnlarger(grids.ratio, FILTERS[kind])
    decoder, encoder = ImageDecoder(folder=folder, settings=settings), ImageEncoder(folder=folder, settings=settings)
    return PixelResampler(grids, decoder, encoder, enlarger)


def locate_networks(
    kind: str, grids: ResolutionMap, folder: Path = FOLDER, sides: tuple[int, int] = SHIPPED_RESOLUTIONS
) -> tuple[Located, Located]:
    """The up and down networks of a `kind` of `LATENT`, checked but not opened; raises as `open_resampler` does."""
    codebook = read_codebook(folder)
    up, down = (
        _fitting(network, of, grids, codebook, folder, sides)
        for network, of in zip(LATENT[kind], ("upsampler", "downsampler"), strict=True)
    )
    return up, down


def _fitting(
    network: str,
    kind: str,
    grids: ResolutionMap,
    codebook: NDArray[np.float32],
    folder: Path,
    sides: tuple[int, int],
) -> Located:
    """The model `network` between `sides`; raises EngineError unless it was made for these grids and this codebook."""
    name, recipe = network + between(*sides), recipe_of(network, sides)
    exported = "vq_decoder" in names(folder) and manifest("vq_decoder", folder).export is not None
    recipe += " --tokenizer CHECKPOINT --pictures FOLDER" if exported else ""
    if name not in names(folder):
        kinds = [kind for kind in LATENT if all(one + between(*sides) in names(folder) for one in LATENT[kind])]
        remedy = "no recipe makes it for these models"
        if exported:
            export = f"underpaint export runs/RUN/checkpoint.pt --kind sampler --out {folder}"
            remedy = f"make it with `underpaint train {recipe}` and `{export}`"
        elif family_of(folder) == TEXTURED_FAMILY:
            remedy = f"make it with `{_trained(network, sides)}` and `underpaint export {name} --out {folder}`"
        others = f", or one that the folder has: {', '.join(kinds)}" if kinds else ""
        raise EngineError(
            f"{folder}: there is no model '{name}'; {remedy}, or take a kind that needs none: "
            f"{', '.join(FILTERS)}{others}"
        )
    located = locate(name, kind, folder)
    model_settings = located.manifest.settings
    try:
        pair = tuple(tuple(int(side) for side in model_settings[which]) for which in ("low", "high"))
        digest = str(model_settings["codebook"])
    except (KeyError, TypeError, ValueError) as error:
        raise ManifestError(f"{name}: expected settings low, high and codebook ({error}); export it again") from error
    if pair != (tuple(grids.low), tuple(grids.high)):
        raise EngineError(
            f"{name}: trained between grids of {_sizes(pair)}, asked for {_sizes((grids.low, grids.high))}; "
            f"train one for this pair with `underpaint train {recipe}`, or take a kind that needs none: "
            + ", ".join(FILTERS)
        )
    if digest != codebook_digest(codebook):
        raise EngineError(
            f"{name}: trained for the codebook {digest[:12]}, {folder} holds {codebook_digest(codebook)[:12]}; "
            f"train it again with `underpaint train {recipe}` and export it, or take the models that it was trained for"
        )
    return located


def world_stage(network: str, sides: tuple[int, int] = SHIPPED_RESOLUTIONS) -> str | None:
    """The stage of `underpaint train world` that makes a network between two sides, or None."""
    stage = _run(network)
    return stage if stage in _WORLD_STAGES and sides == SHIPPED_RESOLUTIONS else None


def _run(network: str) -> str:
    """Name of the training run of a network between the shipped sides."""
    return network if network == SUPER_RESOLUTION else "sampler_" + "_".join(TRAINED_BY[network])


def _trained(network: str, sides: tuple[int, int]) -> str:
    """The command that trains a network for textured scenes, next to the stages of a world."""
    stage = world_stage(network, sides)
    if stage is not None:
        return f"underpaint train world --only {stage} --hours 12"
    world = "runs/world"
    beside = f"--tokenizer {world}/tokenizer/checkpoint.pt --out {world}/{_run(network)}{between(*sides)}"
    return f"underpaint train {recipe_of(network, sides)} {beside}"


def _sizes(pair: tuple[tuple[int, ...], ...]) -> str:
    return " and ".join("x".join(str(side) for side in grid) for grid in pair)

"""Networks between two resolutions of a published tokenizer, trained by `underpaint train`, into an export folder."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

from underpaint.artifacts.manifest import Manifest, ManifestError
from underpaint.export.decoder_weights import round_to_half
from underpaint.export.samplers import Between, require_tokenizer, settings_of, store_between
from underpaint.export.store import Origin
from underpaint.models.checkpoints import load_whole, story
from underpaint.models.published.files import CheckpointError
from underpaint.models.published.load import load
from underpaint.models.sampler import SuperResolution, TokenSampler, load_sampler, load_super_resolution
from underpaint.models.train.sampler import LOSSES
from underpaint.runtime.resampling.registry import SUPER_RESOLUTION, TRAINED_BY
from underpaint.zoo.load import manifest, names
from underpaint.zoo.sides import between as ends_between

KIND: Final = "sampler"
PRECISIONS: Final = ("fp32", "fp16")
"""Of weights; these networks compute in float32, whose argmax they are asked for."""


@dataclass(frozen=True, slots=True)
class Trained:
    """A network of a checkpoint, rounded to the precision asked for, and what it was trained between."""

    checkpoint: Path
    network: TokenSampler | SuperResolution
    between: Between
    name: str
    """Without the sides."""
    training: Mapping[str, object]


def load_trained(checkpoint: Path, precision: str) -> Trained:
    """A checkpoint of `underpaint train sampler` or `superres`.

    Raises FileNotFoundError; CheckpointError on any other checkpoint; ValueError on a precision of none of these.
    """
    if precision not in PRECISIONS:
        raise ValueError(
            f"--precision {precision}: expected {' or '.join(PRECISIONS)}, which the weights of samplers are rounded to"
        )
    if not checkpoint.is_file():
        raise FileNotFoundError(f"no checkpoint at {checkpoint}; train one with `underpaint train sampler`")
    saved = load_whole(checkpoint)
    kind = saved["config"].get("kind")
    if kind not in (KIND, SUPER_RESOLUTION):
        raise CheckpointError(
            f"{checkpoint}: expected what `underpaint train sampler` or `superres` wrote, got a {kind!r} checkpoint"
        )
    between = Between.of(saved["config"])
    network: TokenSampler | SuperResolution
    if kind == SUPER_RESOLUTION:
        network, name = load_super_resolution(checkpoint), SUPER_RESOLUTION
    else:
        network = load_sampler(checkpoint)
        name = _name(checkpoint, network.config.direction, between)
    if precision == "fp16":
        round_to_half(network)
    return Trained(checkpoint, network, between, name, story(saved))


def _name(checkpoint: Path, direction: str, between: Between) -> str:
    """What a token sampler is called, by its direction and the losses that trained it."""
    for name, (way, losses) in TRAINED_BY.items():
        if way == direction and asdict(LOSSES[losses]) == between.losses:
            return name
    raise CheckpointError(
        f"{checkpoint}: expected the losses of {', '.join(LOSSES)}, got {dict(between.losses)}, which no sampler has"
    )


def export_trained(trained: Trained, precision: str, held: Path, aside: Path, told: Origin) -> Manifest:
    """Write a network into `aside`, for the tokenizer that the export folder `held` has. told: what it is made from.

    Raises ManifestError where it has none, and ValueError where it has another than the network was trained with.
    """
    name, between = trained.name, trained.between
    if "vq_decoder" not in names(held):
        raise ManifestError(f"{held} holds no tokenizer for '{name}'; export it into this folder first (--kind vq)")
    record = manifest("vq_decoder", held).export
    if record is None:
        raise ManifestError(
            f"{held}: its tokenizer does not say what it was exported from; export it again (--kind vq)"
        )
    loaded = load(str(record.request["kind"]), Path(record.request["checkpoint"]))
    if loaded.vq is None or loaded.checkpoint.digest() != record.checkpoint_sha256:
        raise ManifestError(f"{loaded.checkpoint.files[0]}: no longer what {held} was exported from; export it again")
    vq = loaded.vq
    require_tokenizer(name, between, vq, f"{held} holds")
    sides = between.low[1] * vq.config.stride, between.high[1] * vq.config.stride
    settings = settings_of(between, held) | {"precision": precision}
    origin = Origin(
        f"{KIND} checkpoint {trained.checkpoint.name}",
        f"underpaint export --kind {KIND}",
        "that of the pictures it was trained on, and of the tokenizer's weights",
        trained.training,
        told.export,
    )
    return store_between(name + ends_between(*sides), trained.network, between, settings, aside, origin)

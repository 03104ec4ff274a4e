"""Exports networks that convert between two resolutions: token samplers and the super-resolution network."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np
import onnx
import torch
from torch import Tensor
from torch.export import Dim

from underpaint.artifacts.manifest import Manifest, ManifestError
from underpaint.export.decoder_weights import plain, round_to_half
from underpaint.export.modules import BATCH, store_module, to_onnx
from underpaint.export.store import Origin
from underpaint.export.vision import MOST_CELLS
from underpaint.models.checkpoints import load_sampler, load_super_resolution, load_whole, story
from underpaint.models.published.files import CheckpointError
from underpaint.models.published.load import load
from underpaint.models.sampler import SuperResolution, TokenSampler, codebook_name
from underpaint.models.vq import VQModel
from underpaint.runtime.resampling.registry import SUPER_RESOLUTION, TRAINED_BY, codebook_digest
from underpaint.training.sampler import LOSSES
from underpaint.zoo.load import manifest, names, read_codebook
from underpaint.zoo.resolutions import between as ends_between


@dataclass(frozen=True, slots=True)
class Between:
    """The two grids of a checkpoint, and its tokenizer, whose `codebook_name` is `codebook`."""

    low: tuple[int, int]
    high: tuple[int, int]
    codebook: str
    losses: Mapping[str, float]

    @classmethod
    def of(cls, config: Mapping[str, Any]) -> "Between":
        """Read the grids, codebook and losses from a checkpoint's config."""
        low, high = ((int(height), int(width)) for height, width in (config["low"], config["high"]))
        return cls(low, high, str(config["codebook"]), dict(config.get("losses", {})))


class Cases(NamedTuple):
    """Inputs to compare a network on: names of its input and output, and the inputs by case."""

    feed: str
    result: str
    inputs: Mapping[str, Tensor]


def export_between(
    name: str,
    model: TokenSampler | SuperResolution,
    between: Between,
    vq: VQModel,
    codebook_folder: Path,
    folder: Path,
    origin: Origin,
) -> Manifest:
    """Write a token sampler or a super-resolution network; its weights are rounded in place.

    The tokenizer `vq` must be the one that it was trained with, and the one in `codebook_folder`; else ValueError.
    """
    settings = _settings(name, between, vq, codebook_folder)
    round_to_half(model)
    return store_between(name, model, between, settings, folder, origin)


def store_between(
    name: str,
    model: TokenSampler | SuperResolution,
    between: Between,
    settings: Mapping[str, Any],
    folder: Path,
    origin: Origin,
) -> Manifest:
    """Write a network without changing it, if its graph computes the same; return its manifest.

    Args:
        name: Name of the model.
        model: The network.
        between: What it converts between.
        settings: See `settings_of`.
        folder: The folder to write to.
        origin: Origin of the weights.
    """
    kind, plain_settings, model = "superres", dict(settings), model.eval()
    if isinstance(model, TokenSampler):
        kind = f"{model.config.direction}sampler"
        plain_settings |= {"losses": dict(between.losses), "vocab_size": model.config.vocab_size}
    cases = cases_of(model)
    graph = _graph(model, cases)
    return store_module(graph, name, kind, plain_settings, folder, origin, model, cases.feed, cases.inputs)


def cases_of(model: TokenSampler | SuperResolution) -> Cases:
    """Random and adversarial inputs for a network."""
    generator = torch.Generator().manual_seed(0)
    if isinstance(model, TokenSampler):
        config = model.config
        step = 1 if config.direction == "up" else config.ratio
        codes = torch.randint(0, config.vocab_size, (2, 3 * step, 4 * step), generator=generator)
        last = torch.full((1, 5 * step, 2 * step), config.vocab_size - 1)
        return Cases("codes", "logits", {"random": codes, "one_row": codes[:1, :step], "last_code": last})
    pixels = torch.rand(2, 3, 24, 32, generator=generator) * 2 - 1
    edges: Tensor = torch.ones(1, 3, 16, 8)
    edges[:, :, 7:] = -1
    return Cases("pixels", "enlarged", {"random": pixels, "edge": edges})


def _graph(model: TokenSampler | SuperResolution, cases: Cases) -> onnx.ModelProto:
    example = cases.inputs["random"]
    if isinstance(model, TokenSampler):
        step = 1 if model.config.direction == "up" else model.config.ratio
        height, width = Dim("h", min=1, max=MOST_CELLS), Dim("w", min=1, max=MOST_CELLS)
        return to_onnx(model, example, cases.feed, (cases.result,), {0: BATCH, 1: step * height, 2: step * width})
    height, width = Dim("h", min=4, max=8 * MOST_CELLS), Dim("w", min=4, max=8 * MOST_CELLS)
    return to_onnx(model, example, cases.feed, (cases.result,), {0: BATCH, 2: height, 3: width})


def settings_of(between: Between, folder: Path) -> dict[str, Any]:
    """Manifest settings that all networks share, for the tokenizer in `folder`."""
    return {
        "low": list(between.low),
        "high": list(between.high),
        "codebook": codebook_digest(read_codebook(folder)),
        "models": ["vq_encoder", "vq_decoder", "codebook"],
    }


def require_tokenizer(name: str, between: Between, vq: VQModel, whose: str) -> None:
    """Raise ValueError unless `vq` is the tokenizer that a network was trained with; `whose` is for the message."""
    if between.codebook != codebook_name(vq):
        raise ValueError(
            f"{name}: trained with the tokenizer {between.codebook[:12]}, {whose} {codebook_name(vq)[:12]}; "
            "train it again with `underpaint train`"
        )


def _settings(name: str, between: Between, vq: VQModel, folder: Path) -> dict[str, Any]:
    """`settings_of`, after checks of both tokenizers."""
    require_tokenizer(name, between, vq, "the runs hold")
    codebook = read_codebook(folder)
    round_to_half(vq)
    expected = plain(vq.quantize.codebook)
    if codebook.shape != expected.shape or not np.allclose(codebook, expected, atol=1e-5):
        raise ValueError(f"{name}: {folder} holds another tokenizer's codebook; export the tokenizer first")
    return settings_of(between, folder)


KIND: Final = "sampler"
PRECISIONS: Final = ("fp32", "fp16")
"""Precisions of the weights; these networks compute in float32, because their argmax is used."""


@dataclass(frozen=True, slots=True)
class Trained:
    """A network of a checkpoint, rounded to the requested precision, and what it converts between."""

    checkpoint: Path
    network: TokenSampler | SuperResolution
    between: Between
    name: str
    """Name without the sides."""
    training: Mapping[str, object]


def load_trained(checkpoint: Path, precision: str) -> Trained:
    """Load a checkpoint of `underpaint train sampler` or `superres`.

    Raises FileNotFoundError; CheckpointError for any other checkpoint; ValueError for an unsupported precision.
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
    """Return the name of a token sampler, from its direction and its training losses."""
    for name, (way, losses) in TRAINED_BY.items():
        if way == direction and asdict(LOSSES[losses]) == between.losses:
            return name
    raise CheckpointError(
        f"{checkpoint}: expected the losses of {', '.join(LOSSES)}, got {dict(between.losses)}, which no sampler has"
    )


def export_trained(trained: Trained, precision: str, output: Path, aside: Path, export_origin: Origin) -> Manifest:
    """Write a network into `aside`, for the tokenizer of the export folder `output`; return its manifest.

    Args:
        trained: The network, rounded to `precision`.
        precision: Precision of the weights.
        output: The export folder.
        aside: The staging folder.
        export_origin: Origin of the network, of which only `export` is used.

    Raises:
        ManifestError: `output` has no usable tokenizer.
        ValueError: The tokenizer is not the one from training.
    """
    name, between = trained.name, trained.between
    if "vq_decoder" not in names(output):
        raise ManifestError(f"{output} holds no tokenizer for '{name}'; export it into this folder first (--kind vq)")
    record = manifest("vq_decoder", output).export
    if record is None:
        raise ManifestError(
            f"{output}: its tokenizer does not say what it was exported from; export it again (--kind vq)"
        )
    loaded = load(str(record.request["kind"]), Path(record.request["checkpoint"]))
    if loaded.vq is None or loaded.checkpoint.digest() != record.checkpoint_sha256:
        raise ManifestError(f"{loaded.checkpoint.files[0]}: no longer what {output} was exported from; export it again")
    vq = loaded.vq
    require_tokenizer(name, between, vq, f"{output} holds")
    sides = between.low[1] * vq.config.stride, between.high[1] * vq.config.stride
    settings = settings_of(between, output) | {"precision": precision}
    origin = Origin(
        f"{KIND} checkpoint {trained.checkpoint.name}",
        f"underpaint export --kind {KIND}",
        "that of the pictures it was trained on, and of the tokenizer's weights",
        trained.training,
        export_origin.export,
    )
    return store_between(name + ends_between(*sides), trained.network, between, settings, aside, origin)

"""Exports decoders of every family: writes the graph, compares it with the module, stores it with a manifest."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final, Literal

from underpaint.artifacts.decoder_config import DecoderConfig, Precision
from underpaint.artifacts.manifest import DRAFT_TARGET, Manifest
from underpaint.export.decoder_graph import write_conditioner, write_decoder
from underpaint.export.decoder_parity import compare
from underpaint.export.decoder_weights import (
    conditioner_weights,
    decoder_weights,
    rotary_table,
    round_to_half,
    round_to_scaled_rows,
)
from underpaint.export.graph import GraphWriter
from underpaint.export.parity import MOST, Report, compare_conditioner
from underpaint.export.store import Differences, Origin, draft_manifest, finish, require_parity
from underpaint.export.weight_file import SUFFIX, WeightFile, header_room
from underpaint.models.decoder import Conditioner, Decoder
from underpaint.models.text import CaptionedTarget, with_condition_table
from underpaint.training.grids import decoder_on_grid, on_grid

SCRATCH: Final = 64
"""Cache slots for the nodes that a drafter expands in one cycle, without the root."""
MOST_EIGHT_BITS: Final = 0.1
"""Largest accepted difference from torch for a decoder that multiplies in 8 bits."""


@dataclass(frozen=True, slots=True)
class GraphFormat:
    """The number formats of an exported decoder.

    Attributes:
        precision: Type of hidden states, caches and computation.
        stored: Narrower type of stored weights; None is the same.
        eight_bits: 8-bit matrices, which reduce a drafter's agreement with its target but keep rules exact.
        scaled: Store matrices that are exactly 8 bits with a scale per row as such; products stay float32.

    Raises:
        ValueError: `eight_bits` or `scaled` is combined with another precision than float32, which no engine here
            supports.
    """

    precision: Precision = "fp32"
    stored: Precision | None = None
    eight_bits: bool = False
    scaled: bool = False

    def __post_init__(self) -> None:
        if (self.eight_bits or self.scaled) and self.precision != "fp32":
            raise ValueError(f"--eight-bits: expected --precision fp32 beside it, got {self.precision}")

    @property
    def fused(self) -> bool:
        """Whether the graph also computes probabilities, chains and trees, for ONNX Runtime."""
        return self.precision == "fp32"


def write_graph(decoder: Decoder, form: GraphFormat, path: Path) -> None:
    """Write a decoder's graph to `path` and its weights to `<name>.safetensors` in the same folder."""
    write_graphs({path: decoder}, form, path.with_suffix(SUFFIX))


def write_graphs(
    decoders: Mapping[Path, Decoder], form: GraphFormat, file: Path, int8_products: Collection[Path] = ()
) -> None:
    """Write each decoder's graph to its path, and the weights that all of them share to `file` in the same folder.

    Args:
        decoders: The decoders by the path of their graph.
        form: Number formats of all graphs.
        file: File of the shared weights.
        int8_products: Paths of graphs that multiply `ScaledRows` in 8 bits.

    Raises:
        ValueError: Decoders differ in more than their grid.
    """
    sources = [
        decoder_weights(decoder, form.stored or form.precision, form.precision, form.eight_bits, form.scaled)
        for decoder in decoders.values()
    ]
    with WeightFile(file, header_room(sources[0])) as written:
        for (path, decoder), weights in zip(decoders.items(), sources, strict=True):
            graph = GraphWriter(path.stem, weights, form.precision, written, path in int8_products)
            config = exported_config(decoder, form.precision)
            write_decoder(graph, config, rotary_table(config), form.fused)
            graph.write(path)


def export_decoder(
    name: str,
    decoder: Decoder,
    conditioner: Conditioner | None,
    form: GraphFormat,
    folder: Path,
    origin: Origin,
    scratch: int = SCRATCH,
) -> Manifest:
    """Write one target or drafter into `folder`, with its weights in `<name>.safetensors`; see `export_decoders`."""
    (manifest,) = export_decoders({name: decoder}, conditioner, form, folder / f"{name}{SUFFIX}", origin, scratch)
    return manifest


def export_decoders(
    decoders: Mapping[str, Decoder],
    conditioner: Conditioner | None,
    form: GraphFormat,
    file: Path,
    origin: Origin,
    scratch: int = SCRATCH,
    drafting: Collection[str] = (),
) -> tuple[Manifest, ...]:
    """Write targets or drafters by name, with their shared weights in `file`, in a folder of `export.store.staged`.

    Args:
        decoders: Decoders by name, which become float32; several may differ only in their grids.
        conditioner: Embeds the features of a condition, and becomes float32; None for other conditions.
        form: Number formats of the graphs.
        file: File of the shared weights.
        origin: Origin of the weights.
        scratch: A drafter's cache slots for the nodes of one cycle.
        drafting: Names of targets that only draft for larger grids; they multiply the same weights in 8 bits, which
            requires `scaled`.

    Returns:
        The manifests of all decoders.

    Raises:
        ParityError: A graph differs from its decoder.
        ValueError: `drafting` is given without `scaled`.
    """
    if drafting and not form.scaled:
        raise ValueError(
            f"{', '.join(drafting)}: products in 8 bits expect scaled weights; set GraphFormat(scaled=True)"
        )
    paths = {file.parent / f"{name}.onnx": decoder for name, decoder in decoders.items()}
    write_graphs(paths, form, file, [path for path in paths if path.stem in drafting])
    whole = None if conditioner is None else conditioner.float()
    matrices: Literal["scaled_rows"] | None = "scaled_rows" if form.scaled else None
    manifests = []
    for path, decoder in paths.items():
        drafts = path.stem in drafting
        differences = _differences(path, decoder.float(), whole, form, drafts)
        kind = "drafter" if decoder.config.drafter else DRAFT_TARGET if drafts else "target"
        draft = draft_manifest(path.stem, kind, origin, asdict(exported_config(decoder, form.precision, scratch)))
        manifests.append(finish(draft, path, differences, shared=file, matrices=matrices))
    return tuple(manifests)


def _differences(
    path: Path, decoder: Decoder, conditioner: Conditioner | None, form: GraphFormat, drafts: bool
) -> Differences:
    """Compare the graph at `path` with `decoder`; raises ParityError if the differences are too large."""
    if form.eight_bits:  # the same graph with the same weights in float32 must be exact
        compared(path.stem, decoder, conditioner, GraphFormat(stored=form.stored, scaled=form.scaled))
    elif form.precision == "bf16":  # bf16 rounding would hide a small mistake: check the same numbers in float32
        compared(path.stem, decoder, conditioner, GraphFormat())
    differences = compare(path, form.precision, decoder, conditioner, greedy=False).worst()
    require_parity(path.stem, differences, MOST_EIGHT_BITS if form.eight_bits or drafts else MOST[form.precision])
    return differences


def compared(name: str, decoder: Decoder, conditioner: Conditioner | None, form: GraphFormat, seed: int = 0) -> Report:
    """Compare a temporary graph of `decoder` with it and return the report; raises ParityError on a difference."""
    with TemporaryDirectory() as beside:
        path = Path(beside) / f"{name}.onnx"
        write_graph(decoder, form, path)
        report = compare(path, form.precision, decoder, conditioner, False, seed)
    require_parity(name, report.worst(), MOST[form.precision])
    return report


def export_conditioner(conditioner: Conditioner, precision: Precision, folder: Path, origin: Origin) -> Manifest:
    """Write `condition`, which embeds the features of a condition; in float32 for a bfloat16 model."""
    form: Precision = "fp32" if precision == "bf16" else precision
    path = folder / "condition.onnx"
    weights = conditioner_weights(conditioner, form)
    with WeightFile(path.with_suffix(SUFFIX), header_room(weights)) as file:
        graph = GraphWriter("condition", weights, form, file)
        prefix, width = conditioner.absent.shape
        write_conditioner(graph, prefix, width, conditioner.first.weight.shape[0])
        graph.write(path)
    parity = compare_conditioner(conditioner.float(), path).worst()
    require_parity("condition", parity, MOST[form])
    return finish(draft_manifest("condition", "condition", origin, {"prefix": prefix, "width": width}), path, parity)


def exported_config(decoder: Decoder, precision: Precision, scratch: int = SCRATCH) -> DecoderConfig:
    """The config in an exported decoder's manifest; scratch: a drafter's cache slots for the nodes of one cycle."""
    config = decoder.config
    read = config.prefix - 1 if config.reads_condition else 0
    capacity = read + config.cells + scratch if config.drafter else config.slots
    return replace(config, precision=precision, capacity=capacity)


def export_shared_target(
    target: CaptionedTarget,
    side_words: Mapping[int, int],
    stride: int,
    folder: Path,
    origin: Origin,
    eight_bits: bool = False,
) -> tuple[Manifest, ...]:
    """Write `target<side>` for each side into `folder`, and `target<side>_int8` for all sides except the largest.

    All of them share the weights in `target.safetensors`. The int8 targets draft for larger sides (MuLo-SD): they
    multiply the same weights in 8 bits, since their tokens are verified anyway. With `eight_bits` every target
    multiplies in 8 bits, and there are no extra int8 targets.

    Args:
        target: The target, whose weights are rounded in place.
        side_words: By picture side in pixels, the id of the word that ends every prompt for that side; a graph's
            manifest has it, so that one prompt serves all sides.
        stride: Pixels per code along a side.
        folder: The folder to write to.
        origin: Origin of the weights.
        eight_bits: Whether to multiply in 8 bits; then each graph must be as close to the rounded target as a
            drafter's, and the same graph must be exact in float32.

    Returns:
        The manifests of all graphs.

    Raises:
        ParityError: A graph does not match the rounded target.
    """
    round_to_scaled_rows(target)
    decoders = {
        f"target{side}": with_condition_table(on_grid(target, side // stride), (word,))
        for side, word in side_words.items()
    }
    followed = [] if eight_bits else [side for side in side_words if side < max(side_words)]
    drafting = {f"target{side}_int8": decoders[f"target{side}"] for side in followed}
    form = GraphFormat(eight_bits=True) if eight_bits else GraphFormat(stored="fp16", scaled=True)
    file = folder / f"target{SUFFIX}"
    return export_decoders({**decoders, **drafting}, None, form, file, origin, drafting=drafting.keys())


def export_shared_drafter(
    drafter: Decoder, sides: Sequence[int], stride: int, folder: Path, origin: Origin, eight_bits: bool = True
) -> tuple[Manifest, ...]:
    """Write `drafter<side>` for each side into `folder`, which all share the weights in `drafter.safetensors`.

    Args:
        drafter: The drafter. Its codes and head are those of a rounded target and do not change; its own weights are
            rounded in place to 16 bits.
        sides: Picture sides in pixels.
        stride: Pixels per code along a side.
        folder: The folder to write to.
        origin: Origin of the weights.
        eight_bits: Whether to multiply in 8 bits; if False, file names end in `_float`.

    Returns:
        The manifests of all graphs.

    Raises:
        ParityError: A graph does not match the rounded drafter.
    """
    _round_own_to_half(drafter)
    ending = "" if eight_bits else "_float"
    decoders = {f"drafter{side}{ending}": decoder_on_grid(drafter, side // stride) for side in sides}
    form = GraphFormat(stored="fp16", eight_bits=eight_bits, scaled=True)
    return export_decoders(decoders, None, form, folder / f"drafter{ending}{SUFFIX}", origin)


def _round_own_to_half(drafter: Decoder) -> None:
    """Round a drafter's own weights in place: all except the codes and head shared with its target."""
    shared = (drafter.codes.weight, drafter.head.weight)
    before = [part.detach().clone() for part in shared]
    round_to_half(drafter)
    for part, original in zip(shared, before, strict=True):
        part.data.copy_(original)

"""Export decoders of every family: write the graph, compare it with the module, store both with a manifest."""

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
"""Cache slots for the nodes that a drafter expands in one cycle, the root excluded."""
MOST_EIGHT_BITS: Final = 0.1
"""The largest difference from torch that passes of a decoder that multiplies in 8 bits."""


@dataclass(frozen=True, slots=True)
class GraphFormat:
    """How a decoder is written.

    precision: of hidden states, caches and what is computed. stored: of weights, where they are stored in less; None
    for the same. eight_bits: matrices in 8 bits, which costs a drafter some agreement with its target and no rule its
    exactness. scaled: matrices that a scale a row holds in 8 bits to the last bit are stored so; products are float32.
    Raises ValueError on either in another precision than float32, which no engine here multiplies in.
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
        """Whether the graph makes probabilities, chains and trees too: it is one for ONNX Runtime."""
        return self.precision == "fp32"


def write_graph(decoder: Decoder, form: GraphFormat, path: Path) -> None:
    """Write a decoder's graph to `path` and its weights to `<name>.safetensors` beside it."""
    write_graphs({path: decoder}, form, path.with_suffix(SUFFIX))


def write_graphs(
    decoders: Mapping[Path, Decoder], form: GraphFormat, file: Path, int8_products: Collection[Path] = ()
) -> None:
    """Write a graph of each decoder to its path, and the weights that all of them have to one file beside them.

    int8_products: paths of graphs that multiply by `ScaledRows` in 8 bits. Raises ValueError where decoders differ in
    more than their grid.
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
    """Write one target or drafter into `folder`, its weights as `<name>.safetensors`; see `export_decoders`."""
    (made,) = export_decoders({name: decoder}, conditioner, form, folder / f"{name}{SUFFIX}", origin, scratch)
    return made


def export_decoders(
    decoders: Mapping[str, Decoder],
    conditioner: Conditioner | None,
    form: GraphFormat,
    file: Path,
    origin: Origin,
    scratch: int = SCRATCH,
    drafting: Collection[str] = (),
) -> tuple[Manifest, ...]:
    """Write targets or drafters by name beside `file`, the weights of them all, in a folder of `export.store.staged`.

    The decoders become float32; where there are several, they differ in their grids alone. scratch: cache slots of a
    drafter for the nodes of one cycle. drafting: names of targets that only draft for larger grids: their products are
    in 8 bits, of the same weights, which have to be `scaled`. Raises ParityError on a difference.
    """
    if drafting and not form.scaled:
        raise ValueError(
            f"{', '.join(drafting)}: products in 8 bits expect scaled weights; set GraphFormat(scaled=True)"
        )
    paths = {file.parent / f"{name}.onnx": decoder for name, decoder in decoders.items()}
    write_graphs(paths, form, file, [path for path in paths if path.stem in drafting])
    whole = None if conditioner is None else conditioner.float()
    matrices: Literal["scaled_rows"] | None = "scaled_rows" if form.scaled else None
    made = []
    for path, decoder in paths.items():
        drafts = path.stem in drafting
        differences = _differences(path, decoder.float(), whole, form, drafts)
        kind = "drafter" if decoder.config.drafter else DRAFT_TARGET if drafts else "target"
        draft = draft_manifest(path.stem, kind, origin, asdict(exported_config(decoder, form.precision, scratch)))
        made.append(finish(draft, path, differences, shared=file, matrices=matrices))
    return tuple(made)


def _differences(
    path: Path, decoder: Decoder, conditioner: Conditioner | None, form: GraphFormat, drafts: bool
) -> Differences:
    """Of the written graph at `path` from `decoder`; ParityError where they are too large."""
    if form.eight_bits:  # the same graph with the same weights in float32 must be exact
        compared(path.stem, decoder, conditioner, GraphFormat(stored=form.stored, scaled=form.scaled))
    elif form.precision == "bf16":  # whose own rounding would hide a small mistake: the same numbers, in float32
        compared(path.stem, decoder, conditioner, GraphFormat())
    differences = compare(path, form.precision, decoder, conditioner, greedy=False).worst()
    require_parity(path.stem, differences, MOST_EIGHT_BITS if form.eight_bits or drafts else MOST[form.precision])
    return differences


def compared(name: str, decoder: Decoder, conditioner: Conditioner | None, form: GraphFormat, seed: int = 0) -> Report:
    """The report on a graph of `decoder` that is written for this alone; ParityError on a difference."""
    with TemporaryDirectory() as beside:
        path = Path(beside) / f"{name}.onnx"
        write_graph(decoder, form, path)
        report = compare(path, form.precision, decoder, conditioner, False, seed)
    require_parity(name, report.worst(), MOST[form.precision])
    return report


def export_conditioner(conditioner: Conditioner, precision: Precision, folder: Path, origin: Origin) -> Manifest:
    """Write `condition`: features of a condition to embedded rows. A bfloat16 model's is in float32."""
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
    """What the manifest of an exported decoder says; scratch: slots of a drafter for the nodes of one cycle."""
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
    """Write `target<side>` for each side into `folder`, and `target<side>_int8` for each that a larger one follows.

    All of them stand on the weights in `target.safetensors`. Those of int8 draft for larger sides (MuLo-SD): their
    products are in 8 bits, of the same numbers, as what they draw is verified anyway. With `eight_bits` every target's
    are, and none is written beside it.

    target: its weights are rounded in place. side_words: by the side of pictures in pixels, the id of the word that
    ends every prompt for such pictures; a graph's manifest names it, so that one prompt serves all sides. stride:
    pixels a code, a side. eight_bits: products are taken in 8 bits; then each graph must be as near to the rounded
    target as a drafter's is, and the same graph exact in float32. Raises ParityError on a graph that does not compute
    what the rounded target does.
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
    """Write `drafter<side>` for each side into `folder`, all of them on the weights in `drafter.safetensors`.

    drafter: its codes and head are those of a rounded target, and stay as they are; its own weights are rounded to 16
    bits in place. stride: pixels a code, a side. eight_bits: products are taken in 8 bits; without, the files' names
    end in `_float`. Raises ParityError on a graph that does not compute what the rounded drafter does.
    """
    _round_own_to_half(drafter)
    ending = "" if eight_bits else "_float"
    decoders = {f"drafter{side}{ending}": decoder_on_grid(drafter, side // stride) for side in sides}
    form = GraphFormat(stored="fp16", eight_bits=eight_bits, scaled=True)
    return export_decoders(decoders, None, form, folder / f"drafter{ending}{SUFFIX}", origin)


def _round_own_to_half(drafter: Decoder) -> None:
    """Round, in place, what a drafter does not share with its target: all but its codes and head."""
    shared = (drafter.codes.weight, drafter.head.weight)
    before = [part.detach().clone() for part in shared]
    round_to_half(drafter)
    for part, held in zip(shared, before, strict=True):
        part.data.copy_(held)

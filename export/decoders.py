"""Export decoders of every family: write the graph, compare it with the module, store both with a manifest."""

from collections.abc import Collection, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final, Literal

from underpaint.artifacts.decoder_graph import Precision
from underpaint.artifacts.manifest import DRAFT_TARGET, Manifest
from underpaint.export.decoder_graph import write_conditioner, write_decoder
from underpaint.export.decoder_parity import compare
from underpaint.export.decoder_weights import conditioner_weights, decoder_weights, rotary_table
from underpaint.export.graph import GraphWriter
from underpaint.export.parity import MOST, Report, compare_conditioner
from underpaint.export.store import Differences, Origin, draft_manifest, finish, require_parity
from underpaint.export.weight_file import SUFFIX, WeightFile, header_room
from underpaint.models.decoder import Conditioner, Decoder
from underpaint.models.decoder_config import DecoderConfig
from underpaint.runtime.engines.shape import DecoderShape

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
            write_decoder(graph, decoder.config, rotary_table(decoder.config), form.fused)
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
    shapes = [shape_of(decoder, form.precision, scratch) for decoder in decoders.values()]
    write_graphs(paths, form, file, [path for path in paths if path.stem in drafting])
    whole = None if conditioner is None else conditioner.float()
    matrices: Literal["scaled_rows"] | None = "scaled_rows" if form.scaled else None
    made = []
    for (path, decoder), shape in zip(paths.items(), shapes, strict=True):
        drafts = path.stem in drafting
        differences = _differences(path, decoder.float(), whole, form, drafts)
        kind = "drafter" if decoder.config.drafter else DRAFT_TARGET if drafts else "target"
        draft = draft_manifest(path.stem, kind, origin, asdict(shape))
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


def shape_of(decoder: Decoder, precision: Precision, scratch: int = SCRATCH) -> DecoderShape:
    """What an engine must know of a decoder."""
    config = decoder.config
    text = config.rope == "line" and not config.drafter
    external = 2 * config.prefix if config.condition == "external" else 0
    eol_token = None if config.drafter else config.eol_token
    return DecoderShape(
        vocab_size=config.vocab_size,
        height=config.grid_side,
        width=config.width,
        layers=config.layers,
        heads=config.heads,
        head_dim=config.head_dim,
        dim=config.dim,
        capacity=config.cells + scratch if config.drafter else config.slots,
        prefix=0 if config.drafter else config.prefix,
        cond_ids=config.cond_ids - (config.uncond_rows if config.uncond_rows > 1 else 0),
        uncond_ids=_uncond_ids(config, text),
        precision=precision,
        prefix_cells="each" if text or config.rope == "none" else "one",
        external_cond_rows=external,
        uncond_keep=() if config.uncond_keep is None else config.uncond_keep,
        image_start_ids=tuple(config.vocab_size + one for one in config.image_start_ids),
        eol_token=None if eol_token is None else config.vocab_size + eol_token,
        rope=config.rope,
        rope_prefix=config.rope_prefix,
        rope_base=config.rope_base,
        norm_eps=config.norm_eps,
        post_norm=config.post_norm,
    )


def _uncond_ids(config: DecoderConfig, text: bool) -> tuple[int, ...]:
    """The rows of the embedding that stand for no condition."""
    if config.condition == "none" or text:
        return ()
    if config.condition == "external":
        return tuple(config.vocab_size + config.prefix + row for row in range(config.prefix))
    end = config.vocab_size + config.cond_ids
    return tuple(range(end - config.uncond_rows, end))

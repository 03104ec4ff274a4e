"""Export targets and drafters: round, write the graph, compare, store."""

from dataclasses import asdict
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

from underpaint.artifacts.manifest import Manifest
from underpaint.export.decoder import drafter_graph, target_graph
from underpaint.export.parity import compare_drafter, compare_target
from underpaint.export.store import Origin, draft_manifest, require_parity, store_onnx
from underpaint.export.weights import halve, vocabulary
from underpaint.models.drafter import BoundDrafter
from underpaint.models.text import WordEncoder
from underpaint.models.transformer import Transformer
from underpaint.runtime.engines.shape import DecoderShape

SCRATCH: Final = 64
"""Cache slots for the nodes that a drafter expands in one cycle, the root excluded."""
MOST: Final = 1e-4
"""The largest difference from the torch module that passes."""
MOST_INTEGERS: Final = 0.1
"""The same for a drafter that multiplies in 8 bits."""


def export_target(
    name: str,
    transformer: Transformer,
    words: WordEncoder | None,
    folder: Path,
    origin: Origin,
    halves: bool = True,
) -> Manifest:
    """Write a target (`words`: its word encoder; None for a class-conditional one) as `name` into `folder`.

    halves: store float16; the module's weights are rounded to it in place. Raises ParityError, and writes nothing,
    on a difference.
    """
    if halves:
        halve(transformer)
    if halves and words is not None:
        halve(words)
    known = vocabulary(transformer, words)
    config = transformer.config
    shape = DecoderShape(
        vocab_size=config.vocab_size,
        height=config.grid_side,
        width=config.grid_side,
        layers=config.n_layer,
        heads=config.n_head,
        head_dim=config.head_dim,
        dim=config.dim,
        capacity=config.cls_token_num + config.block_size,
        prefix=config.cls_token_num,
        cond_ids=known.conditions.shape[0] - (config.cls_token_num if words is not None else 0),
        uncond_ids=known.unconditional,
    )
    draft = draft_manifest(name, "target", origin, asdict(shape))
    graph = target_graph(transformer, known, halves)
    return store_onnx(graph, draft, folder, lambda path: compare_target(path, shape, transformer, words), MOST)


def export_drafter(
    name: str,
    drafter: BoundDrafter,
    folder: Path,
    origin: Origin,
    scratch: int = SCRATCH,
    halves: bool = True,
    integers: bool = False,
) -> Manifest:
    """Write a drafter as `name` into `folder`; see `export_target`.

    scratch: cache slots for the nodes of one cycle. integers: multiply in 8 bits, which costs a drafter some
    agreement with its target and no rule its exactness; the same graph in float32 must pass parity first.
    """
    if halves:
        halve(drafter)
    config = drafter.drafter.config
    shape = DecoderShape(
        vocab_size=config.vocab_size,
        height=config.grid_side,
        width=config.grid_side,
        layers=1,
        heads=config.n_head,
        head_dim=config.head_dim,
        dim=config.dim,
        capacity=config.block_size + scratch,
        prefix=0,
        cond_ids=0,
        uncond_ids=(),
    )
    draft = draft_manifest(name, "drafter", origin, asdict(shape))
    if integers:
        with TemporaryDirectory() as beside:
            twin = Path(beside) / f"{name}.onnx"
            twin.write_bytes(drafter_graph(drafter, halves, False).SerializeToString())
            require_parity(name, compare_drafter(twin, shape, drafter), MOST)
    graph = drafter_graph(drafter, halves, integers)
    most = MOST_INTEGERS if integers else MOST
    return store_onnx(graph, draft, folder, lambda path: compare_drafter(path, shape, drafter), most)

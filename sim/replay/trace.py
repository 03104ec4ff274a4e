"""Traces: the distributions of a target and its drafter at each cell of images drawn by plain autoregression.

A trace is recorded through the protocols, from any engine. It replays as a table model, whose distributions depend on
the cell, and for the drafter also on the number of tokens past the root, but not on the tokens drawn in the replay.
"""

import io
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from underpaint.algos.arrays import FloatArray, IntArray
from underpaint.algos.batched.sparse_table import SparseTable, Table, Tables
from underpaint.algos.memory import check_memory, free_bytes
from underpaint.algos.protocols import Grid, PassKind
from underpaint.artifacts.arrays import ArrayFile
from underpaint.artifacts.manifest import write_beside
from underpaint.artifacts.strict_json import build_typed, check_format
from underpaint.sim.replay.drawn_trace import ARRAYS as DRAWN_ARRAYS
from underpaint.sim.replay.drawn_trace import DrawnTrace
from underpaint.sim.replay.row_trace import ARRAYS as ROW_ARRAYS
from underpaint.sim.replay.row_trace import RowTrace
from underpaint.sim.replay.trace_values import TraceHead, array_forms, check_values
from underpaint.sim.synthetic.table_model import TableModel

FORMAT = 1
MOST_DENSE = 1 << 24
"""Most numbers in the dense tables of a model; larger tables stay sparse, which is slower and takes less memory."""
ARRAYS = (
    *("tokens", "target_tokens", "target_probs", "draft_tokens", "draft_probs"),
    *("target_entropy", "draft_entropy", "neighbour_mass", "acceptance", "codebook"),
)


@dataclass(frozen=True, slots=True, eq=False)
class Trace:
    """A trace of I images of C cells, with D drafter depths and the K likeliest tokens of each distribution.

    Distributions are taken as uniform beyond their K likeliest tokens. D is 0 without a drafter, E without a codebook.

    Attributes:
        about: The model, prompts and sampler, as plain JSON values.
        grid: The model's grid.
        vocab_size: V, the size of the model's vocabulary.
        tokens: [I, C], the tokens of the drawn images.
        target_tokens, target_probs: [I, C, K], the target's distributions.
        draft_tokens, draft_probs: [I, D, C, K], the drafter's distributions; index d is the number of tokens between
            the root and the cell, which are the drawn ones.
        target_entropy: [I, C] nats.
        draft_entropy: [I, D, C] nats.
        neighbour_mass: [I, C], the target's mass on the drawn code and its MOST_CODES_NEAR nearest codes.
        acceptance: [I, D, C], the overlap 1 - TV of the full distributions.
        codebook: [V, E], the embeddings of the codes.
        rows: Rows that low-resolution models drafted for the images, one entry per way of drafting.
        drawn: Images of the same prompts, drawn by methods that no replay can draw.
    """

    about: Mapping[str, Any]
    grid: Grid
    vocab_size: int
    tokens: IntArray
    target_tokens: IntArray
    target_probs: FloatArray
    draft_tokens: IntArray
    draft_probs: FloatArray
    target_entropy: FloatArray
    draft_entropy: FloatArray
    neighbour_mass: FloatArray
    acceptance: FloatArray
    codebook: FloatArray
    rows: tuple[RowTrace, ...] = ()
    drawn: tuple[DrawnTrace, ...] = ()

    @property
    def greedy(self) -> bool:
        """Whether the images were drawn at temperature 0; the distributions are then those at temperature 1."""
        return bool(self.about.get("sampler", {}).get("temperature") == 0.0)

    def __post_init__(self) -> None:
        images, cells = self.tokens.shape
        depths, top_k = self.draft_probs.shape[1], self.target_probs.shape[-1]
        expected = {
            "target_tokens": (images, cells, top_k),
            "target_probs": (images, cells, top_k),
            "draft_tokens": (images, depths, cells, top_k),
            "draft_probs": (images, depths, cells, top_k),
            "target_entropy": (images, cells),
            "draft_entropy": (images, depths, cells),
            "neighbour_mass": (images, cells),
            "acceptance": (images, depths, cells),
        }
        for name, shape in expected.items():
            if getattr(self, name).shape != shape:
                raise ValueError(f"trace: expected {name} {shape}, got {getattr(self, name).shape}; record it again")
        if cells != self.grid.cells or self.codebook.shape[0] != self.vocab_size:
            raise ValueError(
                f"trace: expected {self.grid.cells} cells and {self.vocab_size} codes, got {cells} and "
                f"{self.codebook.shape[0]}; record it again"
            )
        for one in self.rows:
            if one.drafts.shape != (images, cells):
                raise ValueError(f"trace: expected drafted rows {(images, cells)}, got {one.drafts.shape}")
        for drawn_trace in self.drawn:
            if drawn_trace.images != images:
                raise ValueError(f"trace: expected {images} drawn pictures, got {drawn_trace.images}; record it again")


def save(trace: Trace, path: Path) -> None:
    """Write a trace as .npz: first to a temporary file, which then replaces `path`."""
    head = {"format": FORMAT, "about": trace.about, "grid": list(trace.grid), "vocab_size": trace.vocab_size}
    head["rows"] = [{"settings": one.settings, "rows_per_cycle": one.rows_per_cycle} for one in trace.rows]
    head["drawn"] = [
        {name: getattr(one, name) for name in ("recipe", "target_kinds", "drafter_kinds")} for one in trace.drawn
    ]
    arrays: dict[str, Any] = {name: _narrow(getattr(trace, name)) for name in ARRAYS}
    for place, one in enumerate(trace.rows):
        arrays.update({_row_array(place, name): _narrow(getattr(one, name)) for name in ROW_ARRAYS})
    for place, drawn_trace in enumerate(trace.drawn):
        arrays.update({_drawn_array(place, name): _narrow(getattr(drawn_trace, name)) for name in DRAWN_ARRAYS})
    buffer = io.BytesIO()
    np.savez_compressed(buffer, head=np.array(json.dumps(head, sort_keys=True)), **arrays)
    write_beside(path, buffer.getvalue())


def load(path: Path) -> Trace:
    """Load a trace from .npz. Raises ValueError if the file is no trace of this format, OSError if it is missing."""
    try:
        with ArrayFile(path) as file:
            if 3 * file.nbytes > (free := free_bytes()):  # reading, widening and checking each need a copy
                raise ValueError(
                    f"expected arrays that fit in memory, got {file.nbytes / 1e9:.1f} GB, which take three times as "
                    f"much to read, and {free / 1e9:.1f} GB are free: record fewer pictures or depths"
                )
            raw_head = file.read_json("head")
            written = raw_head.get("format") if isinstance(raw_head, dict) else None
            check_format(written, FORMAT, "record it again")
            head = build_typed(TraceHead, raw_head, "head")
            forms = array_forms(head.vocab_size)
            rows = tuple(
                RowTrace(
                    settings=one.settings,
                    rows_per_cycle=one.rows_per_cycle,
                    **{name: _wide(file.read(_row_array(place, name), forms[name])) for name in ROW_ARRAYS},
                )
                for place, one in enumerate(head.rows)
            )
            drawn_traces = tuple(
                DrawnTrace(
                    recipe=one.recipe,
                    target_kinds=tuple(PassKind(*kind) for kind in one.target_kinds),
                    drafter_kinds=tuple(PassKind(*kind) for kind in one.drafter_kinds),
                    **{name: _wide(file.read(_drawn_array(place, name), forms[name])) for name in DRAWN_ARRAYS},
                )
                for place, one in enumerate(head.drawn)
            )
            arrays: dict[str, Any] = {name: _wide(file.read(name, forms[name])) for name in ARRAYS}
        arrays |= {"rows": rows, "drawn": drawn_traces}
        trace = Trace(about=head.about, grid=Grid(*head.grid), vocab_size=head.vocab_size, **arrays)
        check_values(trace)
    except ValueError as error:
        raise ValueError(
            f"{path} is no trace ({error}); record one with `underpaint trace`, or make one of your own logits with "
            "`underpaint trace --from`"
        ) from error
    return trace


def _row_array(place: int, name: str) -> str:
    return f"rows{place}_{name}"


def _drawn_array(place: int, name: str) -> str:
    return f"drawn{place}_{name}"


def _narrow(array: NDArray[Any]) -> NDArray[Any]:
    return array.astype(np.int32 if np.issubdtype(array.dtype, np.integer) else np.float32)


def _wide(array: NDArray[Any]) -> NDArray[Any]:
    return array.astype(np.int64 if np.issubdtype(array.dtype, np.integer) else np.float64)


def dense(tokens: IntArray, probs: FloatArray, vocab_size: int) -> FloatArray:
    """[..., V] float32 distributions from their likeliest tokens [..., K]; the others share the rest equally."""
    table = _table(tokens, probs, vocab_size)
    return table.take(np.arange(table.shape[0])).reshape(*tokens.shape[:-1], vocab_size)


def _table(tokens: IntArray, probs: FloatArray, vocab_size: int) -> SparseTable:
    top_k = tokens.shape[-1]
    return SparseTable(tokens.reshape(-1, top_k), probs.reshape(-1, top_k), vocab_size)


def replay(trace: Trace, name: str = "trace") -> TableModel:
    """Turn a trace into a table model: each cell of each image has its recorded distributions.

    Tables of more than `MOST_DENSE` numbers are sparse.

    Raises:
        ValueError: The tables need more memory than this machine has free.
    """
    images, cells = trace.tokens.shape
    depths, top_k = trace.draft_probs.shape[1], trace.target_probs.shape[-1]
    bytes_each = (depths + 1) * cells * (8 * top_k + 4)
    check_memory(f"the tables of trace '{name}'", "pictures", images, bytes_each, "; record fewer, or fewer --depths")
    pairs = [(trace.target_tokens, trace.target_probs)]
    pairs += [(trace.draft_tokens[:, depth], trace.draft_probs[:, depth]) for depth in range(depths)]
    target, *draft = (_table(*pair, trace.vocab_size) for pair in pairs)
    tables: tuple[Table, Tables] = target, tuple(draft)
    if target.size * (depths + 1) <= MOST_DENSE:
        every = np.arange(images * cells)
        drafted = np.array([table.take(every) for table in draft], dtype=np.float32)
        tables = target.take(every), drafted.reshape(depths, *target.shape)
    return TableModel(
        name=name,
        grid=trace.grid,
        target=tables[0],
        draft=tables[1],
        starts=np.arange(images * cells).reshape(images, cells),
        classes=np.zeros(trace.vocab_size + 1, dtype=np.int64),
        stride=0,
        codebook=trace.codebook,
    )

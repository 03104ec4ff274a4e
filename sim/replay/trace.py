"""Traces: the distributions of a target and its drafter at each cell of images drawn by plain autoregression.

A trace is recorded through the protocols, from any engine. It replays as a table model, whose distributions depend on
the cell, and for the drafter also on the number of tokens past the root, but not on the tokens drawn in the replay.
"""

import io
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from underpaint.algos.arrays import FloatArray, IntArray
from underpaint.algos.batched.sparse_table import SparseTable, Table, Tables
from underpaint.algos.chance import At, Chance, Role
from underpaint.algos.draft.top_tokens import top
from underpaint.algos.memory import check_memory, free_bytes
from underpaint.algos.protocols import Grid, PassKind
from underpaint.algos.step import Drafter, Scored, Target
from underpaint.algos.transport import overlap
from underpaint.algos.tree import Verdict, root_only
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
MOST_CODES_NEAR = 20
"""Number of nearest codes whose mass is recorded together with the drawn token's own."""
_ARRAYS = (
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


class DrawnImage(NamedTuple):
    """Tokens [C] drawn one by one, and for each the target pass before it; row 0 of a pass is the distribution."""

    tokens: IntArray
    scored: list[Scored]


def record_image(
    target: Target, drafter: Drafter, chance: Chance, depths: int, greedy: bool
) -> tuple[IntArray, FloatArray, FloatArray]:
    """Draw one image by plain autoregression, then run the drafter along it.

    Args:
        target: The target.
        drafter: The drafter.
        chance: The noise of the draws.
        depths: D, the number of drafter depths, >= 1.
        greedy: Whether to take the likeliest token, as the greedy rules do.

    Returns:
        The tokens [C], the target's distributions [C, V] and the drafter's [D, C, V]. Cells too close to the start for
        depth d repeat the nearest smaller depth.
    """
    image = draw_image(target, chance, greedy)
    cells = image.tokens.size
    distributions = np.stack([scored.probs[0] for scored in image.scored])
    drafted = np.zeros((depths, *distributions.shape))
    drafter.begin(image.scored[0])
    for cell in range(1, cells):
        root = int(image.tokens[cell - 1])
        drafted[0, cell] = drafter.expand(np.array([root]), np.array([-1]))[0]
        for depth in range(1, min(depths, cells - cell)):
            token = int(image.tokens[cell + depth - 1])
            drafted[depth, cell + depth] = drafter.expand(np.array([token]), np.array([depth - 1]))[0]
        tree = root_only(root, target.vocab_size)
        drafter.commit(tree, Verdict((), int(image.tokens[cell])), image.scored[cell])
    drafted[0, 0] = distributions[0]  # the first cell is never drafted
    for depth in range(1, depths):
        drafted[depth, : min(depth + 1, cells)] = drafted[depth - 1, : min(depth + 1, cells)]
    return image.tokens, distributions, drafted


def draw_image(target: Target, chance: Chance, greedy: bool) -> DrawnImage:
    """Draw one image by plain autoregression.

    Args:
        target: The target.
        chance: The noise of the draws.
        greedy: Whether to take the likeliest token, as the greedy rules do.

    Returns:
        Its tokens, and for each the target pass before it.
    """
    scored = [target.begin()]
    tokens: list[int] = []
    for cell in range(target.grid.cells):
        distribution = scored[-1].probs[0]
        tokens.append(
            int(distribution.argmax()) if greedy else chance.cycle(cell).draw(distribution, At(Role.BONUS, 0))
        )
        if cell + 1 < target.grid.cells:
            tree = root_only(tokens[-1], target.vocab_size)
            scored.append(target.score(tree))
            target.commit(tree, Verdict((), tokens[-1]))
    return DrawnImage(np.array(tokens, dtype=np.int64), scored)


def entropy(distributions: FloatArray) -> FloatArray:
    """[...] entropies, in nats, of distributions [..., V]."""
    with np.errstate(divide="ignore", invalid="ignore"):
        parts = np.where(distributions > 0.0, distributions * np.log(distributions), 0.0)
    nats: FloatArray = -parts.sum(axis=-1)
    return nats


class Recorder:
    """Records images into a trace, with the `keep` likeliest tokens of each distribution."""

    def __init__(self, codebook: FloatArray, neighbours: IntArray, depths: int = 5, keep: int = 128) -> None:
        if depths < 0 or keep < 1:
            raise ValueError(f"trace: expected depths >= 0 and keep >= 1, got {depths} and {keep}")
        self._codebook, self._near = codebook, neighbours[:, :MOST_CODES_NEAR]
        self._depths, self._keep = depths, min(keep, codebook.shape[0])
        self._parts: dict[str, list[Any]] = {name: [] for name in _ARRAYS if name != "codebook"}
        self._grid = Grid(0, 0)

    def add(self, target: Target, drafter: Drafter, chance: Chance, greedy: bool) -> IntArray:
        """Record one image and return its tokens [C]. ValueError if the target and the codebook differ in size."""
        if target.vocab_size != self._codebook.shape[0]:
            raise ValueError(
                f"trace: the target draws {target.vocab_size} codes, the codebook holds {self._codebook.shape[0]}; "
                "take the codebook of the same model"
            )
        recorded = record_image(target, drafter, chance, self._depths, greedy)
        self.add_distributions(target.grid, *recorded)
        return recorded[0]

    def add_distributions(self, grid: Grid, tokens: IntArray, distributions: FloatArray, drafted: FloatArray) -> None:
        """Record one image from known distributions.

        Args:
            grid: Rows and columns of the image.
            tokens: `[C]` int64, the drawn tokens.
            distributions: `[C, V]` float64, the target's.
            drafted: `[D, C, V]` float64, the drafter's, by number of tokens past the root.
        """
        self._grid = grid
        cells, shape = np.arange(tokens.size), (self._depths, tokens.size, min(self._keep, distributions.shape[1]))
        likeliest, proposed = top(distributions, self._keep), [top(row, self._keep) for row in drafted]
        near = distributions[cells[:, None], self._near[tokens]].sum(axis=1) + distributions[cells, tokens]
        for name, value in (
            ("tokens", tokens),
            ("target_tokens", likeliest.tokens),
            ("target_probs", likeliest.probs),
            ("draft_tokens", np.array([one.tokens for one in proposed], dtype=np.int64).reshape(shape)),
            ("draft_probs", np.array([one.probs for one in proposed]).reshape(shape)),
            ("target_entropy", entropy(distributions)),
            ("draft_entropy", entropy(drafted)),
            ("neighbour_mass", near),
            ("acceptance", overlap(distributions[None], drafted)),
        ):
            self._parts[name].append(value)

    def trace(self, about: Mapping[str, Any], rows: Sequence[RowTrace] = (), drawn: Sequence[DrawnTrace] = ()) -> Trace:
        """Build the trace, with drafted rows and drawn images for its prompts; ValueError if nothing was recorded."""
        if not self._parts["tokens"]:
            raise ValueError("trace: nothing was recorded; add an image first")
        arrays: dict[str, Any] = {name: np.stack(parts) for name, parts in self._parts.items()}
        arrays |= {"codebook": self._codebook.astype(np.float32), "rows": tuple(rows), "drawn": tuple(drawn)}
        return Trace(dict(about), self._grid, self._codebook.shape[0], **arrays)


def save(trace: Trace, path: Path) -> None:
    """Write a trace as .npz: first to a temporary file, which then replaces `path`."""
    head = {"format": FORMAT, "about": trace.about, "grid": list(trace.grid), "vocab_size": trace.vocab_size}
    head["rows"] = [{"settings": one.settings, "rows_per_cycle": one.rows_per_cycle} for one in trace.rows]
    head["drawn"] = [
        {name: getattr(one, name) for name in ("recipe", "target_kinds", "drafter_kinds")} for one in trace.drawn
    ]
    arrays: dict[str, Any] = {name: _narrow(getattr(trace, name)) for name in _ARRAYS}
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
            arrays: dict[str, Any] = {name: _wide(file.read(name, forms[name])) for name in _ARRAYS}
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

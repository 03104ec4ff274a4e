"""What every walk down a tree shares: when an image takes part, and how its verdict is written.

A verdict is `path` [B, N] int64 (accepted nodes, the first `taken` - 1 of them), `taken` [B] int64 (nodes to commit,
the root included; 0 where the image does not take part) and `token` [B] int64, as `algos.tree.Verdict`.
"""

from collections.abc import Callable
from typing import Any, Final, NamedTuple, TypeAlias

from torch import Tensor

from underpaint.algos.tree import Drawn
from underpaint.runtime.device.language import kernel, launch, next_power_of_2, tl

GOING: Final = 0
DONE: Final = 1
NOT_FINITE: Final = 2
NO_SUPPORT: Final = 3
NOT_DRAWN: Final = 4
"""Values of an image's status; those above DONE end it with an error."""
TILE: Final = 8192
"""Numbers of a row at a time: each of 256 threads holds 32 of them."""
MOST_TOKENS: Final = 8 * TILE
"""Of a vocabulary: `row_maths` draws from 64 parts of a row, each of 1,024 tokens."""


class BatchTree(NamedTuple):
    """A tree of each image, as walks read it; [B, N] int64 where nothing else is said.

    tokens, first, sibling, masks, depths: see `tree_meta`. counts [B] int64. probs [B, N, V] float32: the target's
    distributions. draft_probs [B, M, V] float32 or float64 and draft_rows: as `algos.tree.DraftTree`.
    uniforms [B, R, N] float64, the roles ACCEPT, RESIDUAL, BONUS from `role` on.
    """

    tokens: Tensor
    first: Tensor
    sibling: Tensor
    masks: Tensor
    parents: Tensor
    counts: Tensor
    probs: Tensor
    draft_probs: Tensor
    draft_rows: Tensor
    uniforms: Tensor


class Verdicts(NamedTuple):
    """Where verdicts go; see the module. status [B] int64; finite [B, M] int32: 0 where a row of logits was not."""

    path: Tensor
    taken: Tensor
    token: Tensor
    status: Tensor
    finite: Tensor


class Shape(NamedTuple):
    """What a rule must know of the trees that it will decide. levels: the greatest depth; children: of one node."""

    batch: int
    nodes: int
    vocab_size: int
    drawn: Drawn
    levels: int
    children: int


Decide: TypeAlias = Callable[[BatchTree, Tensor, Verdicts], None]
"""Decides a batch of trees, given the depths [B, N] int64 of their nodes; no read-back."""


@kernel
def takes_part(status, finite, taken, image, rows, ROWS: tl.constexpr):
    """1 for an image that goes on; else 0, with nothing to commit. Ends an image whose logits are not finite."""
    state = tl.load(status + image)
    lane = tl.arange(0, ROWS)
    sound = tl.min(tl.load(finite + image * rows + lane, lane < rows, other=1), axis=0)
    if (state == 0) & (sound == 0):
        tl.store(status + image, 2)
    going = tl.where((state == 0) & (sound == 1), 1, 0)
    if going == 0:
        tl.store(taken + image, 0)
    return going


@kernel
def noise_of(tree, image, N, ROLES: tl.constexpr):
    """Where an image's uniforms [N] of the roles ACCEPT, RESIDUAL and BONUS begin."""
    accept = tree.uniforms + image * ROLES * N + N
    return accept, accept + N, accept + 2 * N


@kernel
def drafted_row(tree, image, node, drafts, V, N):
    """What the children of `node` were drawn from, [V] in `tree.draft_probs`, which has `drafts` rows of an image."""
    return tree.draft_probs + (image.to(tl.int64) * drafts + tl.load(tree.draft_rows + image * N + node)) * V


@kernel
def lane_of(held, lane, place):
    """The number that `held` has in one of its lanes."""
    return tl.sum(tl.where(lane == place, held, tl.zeros_like(held)), axis=0)


@kernel
def conclude(out, image, length, found, V, sound) -> None:
    """Write a verdict of `length` accepted nodes and the extra token; V stands for a row that holds nothing.

    sound: 0 where a drafted token had no probability under what it was drawn from.
    """
    if (found < V) & (sound == 1):
        tl.store(out.taken + image, length + 1)
        tl.store(out.token + image, found)
    else:
        tl.store(out.taken + image, 0)
        tl.store(out.status + image, tl.where(sound == 1, 3, 4))


def launch_walk(
    function: Any,
    shape: Shape,
    tree: BatchTree,
    out: Verdicts,
    moved_bytes: int,
    *own: Any,
    warps: int = 8,
    programs: int | None = None,
    **constants: int,
) -> None:
    """Launch a walk with one program an image: `function(tree, out, *own, V, N, drafts, rows, **constants)`.

    drafts: rows of `tree.draft_probs`; rows: of `out.finite`, the constant ROWS is as many or more. ROLES: of the
    uniforms. moved_bytes: see `launch`. programs: where an image has several, whose numbers come before the image's.
    warps: of a program. Of 4 and 8, drawn siblings and runs take that with which no thread exceeds the stack that
    `tools.compile_ahead` allows, on every architecture.
    """
    batch, nodes, vocab_size = tree.probs.shape
    rows = out.finite.shape[1]
    sizes = (vocab_size, nodes, tree.draft_probs.shape[1], rows)
    # Threads that share a place of a small row would read what another of them has written already.
    warps = max(1, min(warps, constants["BLOCK"] // 32))
    constants |= {"ROLES": tree.uniforms.shape[1], "ROWS": next_power_of_2(rows)}
    # Of a node's children two are tried: more than that on average would be an acceptance below a half.
    trips = {"levels": shape.levels, "tries": min(shape.children, 2), "children": shape.children}
    grid = (batch,) if programs is None else (programs, batch)
    launch(function, grid, moved_bytes, tree, out, *own, *sizes, warps=warps, trips=trips, **constants)


def tile(vocab_size: int, wide: bool = False) -> int:
    """The tile of a kernel over rows of `vocab_size` float32, or (`wide`) float64 numbers."""
    if vocab_size > MOST_TOKENS:
        raise ValueError(f"device: expected a vocabulary of at most {MOST_TOKENS} tokens, got {vocab_size}")
    return min(TILE // (1 + wide), next_power_of_2(vocab_size))


def row_bytes(tree: BatchTree, rows_read: int, number: int = 4) -> int:
    """Bytes of `rows_read` rows of every image."""
    return tree.probs.shape[0] * rows_read * tree.probs.shape[2] * number

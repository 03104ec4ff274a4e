"""The parts that all tree walks share: when an image takes part in a walk, and how its verdict is written.

A verdict is that of `algos.tree.Verdict`: `path` [B, N] int64 (the accepted nodes, of which the first `taken` - 1 are
valid), `taken` [B] int64 (nodes to commit, root included; 0 if nothing is committed) and `token` [B] int64.
"""

from collections.abc import Callable
from typing import Any, Final, NamedTuple, TypeAlias

from torch import Tensor

from underpaint.algos.tree import Drawn
from underpaint.runtime.device.launch import kernel, launch, next_power_of_2, tl

GOING: Final = 0
DONE: Final = 1
NOT_FINITE: Final = 2
NO_SUPPORT: Final = 3
NOT_DRAWN: Final = 4
"""Status values of an image. Values above DONE mean that it ended with an error."""
TILE: Final = 8192
"""Largest number of values of a row that a program loads at once: 32 in each of 256 threads."""
MOST_TOKENS: Final = 8 * TILE
"""Largest vocabulary: `row_maths` draws from a row in 64 parts of at most 1,024 tokens each."""


class BatchTree(NamedTuple):
    """The draft trees of a batch, as walks read them; [B, N] int64 unless noted.

    Attributes:
        tokens, first, sibling, masks, parents: See `tree_meta`.
        counts: Number of nodes of each tree, [B] int64.
        probs: The target's distributions, [B, N, V] float32.
        draft_probs, draft_rows: As in `algos.tree.DraftTree`; draft_probs is [B, M, V] float32 or float64.
        uniforms: Noise by role and node, [B, R, N] float64. Roles 1, 2 and 3 are ACCEPT, RESIDUAL and BONUS.
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
    """Buffers of verdicts, see the module. status [B] int64; finite [B, M] int32: 0 for a row of non-finite logits."""

    path: Tensor
    taken: Tensor
    token: Tensor
    status: Tensor
    finite: Tensor


class Shape(NamedTuple):
    """Sizes of the trees that a rule decides.

    Attributes:
        batch: Number of images.
        nodes: Nodes per tree.
        vocab_size: Tokens in the vocabulary.
        drawn: How siblings were drawn, see `algos.tree.DraftTree`.
        levels: Largest depth.
        children: Largest number of children of a node.
    """

    batch: int
    nodes: int
    vocab_size: int
    drawn: Drawn
    levels: int
    children: int


Decide: TypeAlias = Callable[[BatchTree, Tensor, Verdicts], None]
"""Decides a batch of trees, given the depths [B, N] int64 of their nodes, without reading anything back to the host."""


@kernel
def takes_part(status, finite, taken, image, rows, ROWS: tl.constexpr):
    """Return 1 if an image still runs, else 0 with its `taken` set to 0. Non-finite logits end it (NOT_FINITE)."""
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
    """Return pointers to an image's uniforms [N] of the roles ACCEPT, RESIDUAL and BONUS."""
    accept = tree.uniforms + image * ROLES * N + N
    return accept, accept + N, accept + 2 * N


@kernel
def drafted_row(tree, image, node, drafts, V, N):
    """Return a pointer to the distribution [V] that `node`'s children were drawn from. drafts: such rows per image."""
    return tree.draft_probs + (image.to(tl.int64) * drafts + tl.load(tree.draft_rows + image * N + node)) * V


@kernel
def lane_of(values, lane, place):
    """Return the entry of `values` in lane `place`; 0 if there is no such lane. lane: the lane numbers."""
    return tl.sum(tl.where(lane == place, values, tl.zeros_like(values)), axis=0)


@kernel
def conclude(out, image, length, token, V, sound) -> None:
    """Write a verdict of `length` accepted nodes and the extra `token`, or end the image with an error.

    token: V if the row had no weight (NO_SUPPORT). sound: 0 if a draft token cannot have been drawn (NOT_DRAWN).
    """
    if (token < V) & (sound == 1):
        tl.store(out.taken + image, length + 1)
        tl.store(out.token + image, token)
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
    """Launch a walk as `function(tree, out, *own, V, N, drafts, rows, **constants)`, by default one program per image.

    `drafts` and `rows` are the rows per image of `tree.draft_probs` and of `out.finite`. The constant ROWS is at least
    as large as `rows`; ROLES is the number of roles of the uniforms.

    Args:
        function: The kernel.
        shape: Sizes of the trees.
        tree: The trees to judge.
        out: Takes the verdicts.
        moved_bytes: See `launch`.
        *own: The kernel's own arguments.
        warps: Warps per program. Walks over drawn siblings and over runs use 4 or 8, whichever keeps the stack of every
            thread within the limit of `tools.compile_ahead` on every architecture.
        programs: Programs per image, if several; their grid axis comes before the images'.
        **constants: The kernel's own constants, and BLOCK.
    """
    batch, nodes, vocab_size = tree.probs.shape
    rows = out.finite.shape[1]
    sizes = (vocab_size, nodes, tree.draft_probs.shape[1], rows)
    # If a small row has fewer values than threads, threads share values: one could read what another has written.
    warps = max(1, min(warps, constants["BLOCK"] // 32))
    constants |= {"ROLES": tree.uniforms.shape[1], "ROWS": next_power_of_2(rows)}
    # On average at most two children of a node are tried; more would mean an acceptance rate below one half.
    trips = {"levels": shape.levels, "tries": min(shape.children, 2), "children": shape.children}
    grid = (batch,) if programs is None else (programs, batch)
    launch(function, grid, moved_bytes, tree, out, *own, *sizes, warps=warps, trips=trips, **constants)


def tile(vocab_size: int, wide: bool = False) -> int:
    """Return the tile size for rows of `vocab_size` float32 (`wide`: float64) values; ValueError above MOST_TOKENS."""
    if vocab_size > MOST_TOKENS:
        raise ValueError(f"device: expected a vocabulary of at most {MOST_TOKENS} tokens, got {vocab_size}")
    return min(TILE // (1 + wide), next_power_of_2(vocab_size))


def row_bytes(tree: BatchTree, rows_read: int, number: int = 4) -> int:
    """Return the bytes in some rows [V] of every image.

    Args:
        tree: The trees.
        rows_read: Rows per image.
        number: Bytes per value.
    """
    return tree.probs.shape[0] * rows_read * tree.probs.shape[2] * number

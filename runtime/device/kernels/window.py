"""What a Jacobi window is on the device between its passes."""

from typing import NamedTuple

from torch import Tensor

from underpaint.algos.chance import Role
from underpaint.runtime.device.language import kernel, tl

WINDOW_ROLES = (Role.DRAFT, Role.COUPLE, Role.REFILL)
"""Roles that a window draws noise for by cell, in the order of `WindowBuffers.uniforms`."""


class WindowBuffers(NamedTuple):
    """A window of W drafts of each image. Draft k is node k + 1 of the tree, and of the k-th cell behind the decided.

    tokens [B, W] int64 and counts [B] int64: the drafts that the last pass left; their distributions are the first
    rows of `BatchTree.draft_probs`. uniforms [B, 3, W + 1] float64: of `WINDOW_ROLES`, by cell, the first one behind a
    whole window too. noise [B, cells, V] float64: the cells' own, where drafts race.
    nodes [B, W + 1] int64: whose distributions are those of the cells from the first on; of a chain, its own.
    confidence [1] float64: a draft stays while its probability is above so many times the old one, in that coupling.
    arrivals [B] int32: 0 between launches.
    """

    tokens: Tensor
    counts: Tensor
    uniforms: Tensor
    noise: Tensor
    nodes: Tensor
    confidence: Tensor
    arrivals: Tensor


@kernel
def end_of_drafts(done, last, cells, most, LAST: tl.constexpr):
    """Behind which place nothing is drafted anew, after a pass over `last` drafts of which `done` - 1 were accepted.

    LAST: after a rejection the first cell behind the window is drafted too, while the picture has one before its last
    (`most` cells, `cells` of them decided).
    """
    end = last
    if LAST:
        end += ((done <= last) & (cells - done + last < most - 1)).to(tl.int64)
    return end

"""The buffers of a Jacobi window on the device between its passes."""

from typing import NamedTuple

from torch import Tensor

from underpaint.algos.chance import Role
from underpaint.runtime.device.launch import kernel, tl

WINDOW_ROLES = (Role.DRAFT, Role.COUPLE, Role.REFILL)
"""Roles whose noise a window draws by cell, in the order of `WindowBuffers.uniforms`."""


class WindowBuffers(NamedTuple):
    """A window of W drafts per image. Draft k, from 0 on, is node k + 1 of the tree and belongs to undecided cell k.

    Attributes:
        tokens, counts: The drafts that the last pass left, [B, W] int64, and their number, [B] int64. The first rows of
            `BatchTree.draft_probs` are their distributions.
        uniforms: Noise by `WINDOW_ROLES` and cell, [B, 3, W + 1] float64, up to the first cell after a full window.
        noise: Noise that is fixed for each cell, [B, cells, V] float64, if drafts are drawn by a race.
        nodes: For each cell, the node whose target row is its new distribution, [B, W + 1] int64; k in a chain.
        confidence: [1] float64: in that coupling a draft stays if its probability is above this times the old one.
        arrivals: Counters for `is_last`, [B] int32; 0 between launches.
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
    """Return the place where new drafts end, after a pass over `last` drafts of which `done` - 1 were accepted.

    LAST: after a rejection, the first cell after the window is drafted too if it is before the picture's last cell
    (`most` cells, `cells` of them decided).
    """
    end = last
    if LAST:
        end += ((done <= last) & (cells - done + last < most - 1)).to(tl.int64)
    return end

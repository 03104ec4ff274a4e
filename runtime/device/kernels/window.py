"""What a Jacobi window is on the device between its passes."""

from typing import NamedTuple

from torch import Tensor

from underpaint.algos.chance import Role

WINDOW_ROLES = (Role.DRAFT, Role.COUPLE, Role.REFILL)
"""Roles that a window draws noise for by cell, in the order of `WindowBuffers.uniforms`."""


class WindowBuffers(NamedTuple):
    """A window of W drafts of each image. Draft k is node k + 1 of the tree, and of the k-th cell behind the decided.

    tokens [B, W] int64 and counts [B] int64: the drafts that the last pass left; their distributions are the first
    rows of `BatchTree.draft_probs`. uniforms [B, 3, W] float64: of `WINDOW_ROLES`, by cell.
    left [B, W, V] float64: scratch. noise [B, cells, V] float64: the cells' own, where drafts race.
    """

    tokens: Tensor
    counts: Tensor
    uniforms: Tensor
    left: Tensor
    noise: Tensor

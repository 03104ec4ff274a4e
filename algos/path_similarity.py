"""How much the paths of a draft tree look alike: the measure by which VVS skips verification (arXiv 2511.13587)."""

import numpy as np

from underpaint.algos.arrays import FloatArray
from underpaint.algos.tree import DraftTree


def path_similarity(tree: DraftTree, codebook: FloatArray, decay: float) -> float:
    """The mean over pairs of paths from the root to a leaf of their codes' similarity, level by level; 0 for one path.

    codebook: [V, E]. A pair has the weighted mean over the tree's levels of the cosine between its two codes there;
    0 at a level that one of them does not reach. Level l = 0, 1, ... has a weight in proportion to decay^l.
    Deviation: the released code compares every other path only.
    """
    leaves = tree.leaves
    if len(leaves) < 2:
        return 0.0
    codes = np.zeros((len(leaves), tree.depth, codebook.shape[1]))
    for row, leaf in zip(codes, leaves, strict=True):
        path = tree.tokens[list(tree.path_to(leaf))]
        row[: path.size] = codebook[path]
    weights = decay ** np.arange(tree.depth, dtype=np.float64)
    weights /= weights.sum()
    return float(weights @ _pair_sums(_unit(codes)) / (len(leaves) * (len(leaves) - 1)))


def _unit(codes: FloatArray) -> FloatArray:
    """`codes` [paths, levels, E], scaled in place to length 1; those of length 0 stay as they are."""
    lengths = np.linalg.norm(codes, axis=2, keepdims=True)
    np.divide(codes, lengths, out=codes, where=lengths > 0.0)
    return codes


def _pair_sums(codes: FloatArray) -> FloatArray:
    """[levels]: the sum of the products over ordered pairs of paths, the square of the sum less each with itself."""
    total = codes.sum(axis=0)
    sums: FloatArray = np.einsum("le,le->l", total, total) - np.einsum("nle,nle->l", codes, codes)
    return sums

"""How similar the paths of a draft tree are: the measure by which VVS skips verification (arXiv 2511.13587)."""

import numpy as np

from underpaint.algos.arrays import FloatArray
from underpaint.algos.tree import DraftTree


def path_similarity(tree: DraftTree, codebook: FloatArray, decay: float) -> float:
    """Return the mean similarity of the codes along two root-to-leaf paths, over all pairs of paths; 0 for one path.

    The similarity of a pair is a weighted mean, over the tree's levels, of the cosine between the two codes at that
    level (0 if one path does not reach it). Deviation: the released code compares every other path only.

    Args:
        tree: The draft tree.
        codebook: [V, E], the codes.
        decay: Level l = 0, 1, ... has a weight proportional to decay^l.
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
    """Scale `codes` [paths, levels, E] in place to length 1 and return them; codes of length 0 are unchanged."""
    lengths = np.linalg.norm(codes, axis=2, keepdims=True)
    np.divide(codes, lengths, out=codes, where=lengths > 0.0)
    return codes


def _pair_sums(codes: FloatArray) -> FloatArray:
    """Return [levels]: products summed over ordered pairs of different paths, as squared sum minus the squares."""
    total = codes.sum(axis=0)
    sums: FloatArray = np.einsum("le,le->l", total, total) - np.einsum("nle,nle->l", codes, codes)
    return sums

"""A Jacobi window as a draft tree: a chain of held drafts, and candidates beside the first of them (SJD-PAC, arXiv
2603.18599, proactive drafting).

The first cells of a window are where the last pass broke off, so a draft is likeliest to fail there. Each of them
gets more candidates, drawn without replacement from the distribution that its held draft was drawn from. Below every
candidate of a cell stand the same candidates of the next one: a draft's distribution was made in one context, the
held one, and says the same in all of them.

That stays lossless under a rule that decides token by token, because the walk sees the candidates of a cell once, below
the one node it stands at. A rule that looks ahead would see them below one candidate and then take them for fresh
below the next.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from underpaint.algos.arrays import FloatArray
from underpaint.algos.chance import At, Chance, Role
from underpaint.algos.tree import DraftTree, Drawn


class WindowDraft(NamedTuple):
    """A cell of the window: its token, and the distribution [V] it was drawn from."""

    token: int
    distribution: FloatArray


def tree_nodes(length: int, candidates: int, levels: int) -> int:
    """The most nodes, the root included, of a window of `length` drafts with `candidates` in each of its first cells.

    length, candidates, levels: >= 1; levels beyond the window count as the window.
    """
    levels = min(levels, length)
    beside: int = sum(candidates**level for level in range(1, levels + 1))
    return 1 + beside + length - levels


def window_tree(
    root: int, drafts: Sequence[WindowDraft], candidates: int, levels: int, drawn: Drawn, cell: int, chance: Chance
) -> DraftTree:
    """The tree below `root`, of one draft or more: node i + 1 holds drafts[i], its parent is node i; the candidates'
    nodes come after them.

    candidates: tokens proposed for each of the first `levels` cells, the held draft first; fewer where its
    distribution has fewer. drawn: "iid" or "without_replacement", the latter with more than one candidate; what a chain
    is called does not matter to what it is.
    cell: raster index of the window's first cell. Candidates are drawn at At(CANDIDATE, cell * candidates + k), k >= 1.
    """
    count = len(drafts)
    proposals = [
        _proposals(draft, candidates if place < levels else 1, (cell + place) * candidates, chance)
        for place, draft in enumerate(drafts)
    ]
    tokens = [root, *(draft.token for draft in drafts)]
    parents, rows = list(range(-1, count)), [*range(count), -1]
    level = [0]
    for place in range(min(levels, count)):
        below = list[int]()
        for node in level:
            rows[node] = place
            held = node == place
            below += [place + 1] if held else []
            for token in proposals[place][held:]:
                below.append(len(tokens))
                tokens.append(token)
                parents.append(node)
                rows.append(-1)
        level = below
    return DraftTree(
        tokens=np.array(tokens, dtype=np.int64),
        parents=np.array(parents, dtype=np.int64),
        drawn=drawn,
        draft_probs=np.stack([draft.distribution for draft in drafts]),
        draft_rows=np.array(rows, dtype=np.int64),
    )


def _proposals(draft: WindowDraft, candidates: int, address: int, chance: Chance) -> list[int]:
    """The held token, and others drawn one by one from what it leaves of its distribution."""
    tokens = [draft.token]
    left = draft.distribution.copy()
    for place in range(1, candidates):
        left[tokens[-1]] = 0.0
        if not left.any():
            break
        tokens.append(chance.draw(left, At(Role.CANDIDATE, address + place)))
    return tokens


def tail_nodes(tree: DraftTree, path: Sequence[int], length: int) -> list[int]:
    """The nodes whose distributions the drafts behind an accepted `path` are made from, by place len(path) + 1 and on.

    length: drafts in the window. Each is the context with the first proposals below the last accepted node; where
    the tree ends there, the held chain's.
    """
    first: dict[int, int] = {}
    for node, parent in enumerate(tree.parents.tolist()):
        first.setdefault(parent, node)
    nodes, node = list[int](), path[-1] if path else 0
    for place in range(len(path) + 1, length):
        node = first.get(node, place)
        nodes.append(node)
    return nodes

"""The protocols of rules and tree policies, and of the part of a drafter that a policy uses.

The full target and drafter protocols are in `algos.step`.
"""

from typing import Literal, NamedTuple, Protocol, Self, TypeGuard

from underpaint.algos.arrays import FloatArray, IntArray
from underpaint.algos.chance import Chance
from underpaint.algos.tree import DraftTree, Verdict


class Rule(Protocol):
    """An acceptance rule: decides which drafted nodes to keep, and the one extra token."""

    def __call__(self, tree: DraftTree, probs: FloatArray, chance: Chance) -> Verdict:
        """Return the verdict on `tree`, given `probs` [N, V]: row i is the target's distribution after node i."""
        ...


class Grid(NamedTuple):
    """The size of the image in cells (tokens). Cells are numbered in raster order."""

    height: int
    width: int

    @property
    def cells(self) -> int:
        """The number of cells."""
        return self.height * self.width

    @classmethod
    def read(cls, text: str) -> Self:
        """Parse "48x64" as 48 rows of 64 cells each; raise ValueError for any other format."""
        rows, _, columns = text.partition("x")
        sides = [int(side) if side.isdecimal() and side.isascii() and len(side) < 5 else 0 for side in (rows, columns)]
        if min(sides) < 1:
            raise ValueError(f"--grid: expected ROWSxCOLUMNS of tokens, such as 48x48, got {text[:40]!r}")
        return cls(*sides)


class Budget(NamedTuple):
    """The limits on one draft tree: at most `max_depth` levels below the root, and `max_nodes` nodes with the root."""

    max_depth: int
    max_nodes: int


class Expander(Protocol):
    """The part of a drafter that a policy uses."""

    @property
    def vocab_size(self) -> int:
        """The vocabulary size V."""
        ...

    def expand(self, tokens: IntArray, parents: IntArray) -> FloatArray:
        """Add nodes to the draft, in one drafter pass. The first call of a cycle adds the root: ([root token], [-1]).

        Args:
            tokens: [F] int64, the tokens of the new nodes. Node ids count up from 0 in order of addition.
            parents: [F] int64, ids of nodes added earlier in this cycle.

        Returns:
            [F, V], the distribution of the token after each new node.
        """
        ...


class ChainExpander(Expander, Protocol):
    """Optional extension of `Expander`: a drafter that can draft a greedy chain in one call."""

    @property
    def fuses_chains(self) -> bool:
        """Whether the drafter supports it. If False, `Expander.expand` drafts the chain level by level."""
        ...

    def expand_chain(self, root: int, levels: int) -> IntArray:
        """Return the greedy chain after `root`: [levels] int64, each the likeliest token after the one before.

        May only be the first call of a cycle, with levels >= 1. It acts like `expand([root], [-1])`; the drafted tokens
        themselves are not kept as nodes. Each level counts as one drafter pass.
        """
        ...


class PassKind(NamedTuple):
    """The properties of an engine call that its cost depends on.

    Attributes:
        form: "begin" is the prefill over the condition, and "pass" any other pass over new positions. "chain" drafts a
            chain; "sampled" and "ranked" draft a tree, and name how siblings are chosen.
        levels: The number of levels drafted; 1 for a pass.
        size: New positions in a pass or a chain call. For a tree, the nodes expanded at each level below the root's.
    """

    form: Literal["begin", "pass", "chain", "sampled", "ranked"]
    levels: int
    size: int


class FusedTreeSpec(NamedTuple):
    """A request to grow a draft tree in one call: L levels, F nodes expanded per level, C children per node.

    Attributes:
        places: [L, F] int64. places[l] lists the candidates of level l that the next level expands; the candidate in
            row r and column c has number r * C + c. The first level has one row, the root's. The last row is not read.
        uniforms: [L, F, C] float64, used if `drawn`.
        ranked: If True, expand the F candidates with the largest path probability instead of `places` (ties: the
            first), best first.
        drawn: If True, children are drawn without replacement with `uniforms`, as `chance.index_of` does. Otherwise the
            children are the likeliest tokens, likeliest first (ties: the lower token).
    """

    places: IntArray
    uniforms: FloatArray
    ranked: bool
    drawn: bool


class FusedTreeLevel(NamedTuple):
    """One level of a tree that was grown in one call.

    Attributes:
        places: [F] int64, the candidates of the level above that were expanded.
        distributions: [F, V], the distribution of the token after each expanded node.
        tokens: [F, C] int64, the children of each expanded node.
        masses: [F, C] float64, each token's mass in its distribution when it was chosen, at most 1; 0 if no mass was
            left.
    """

    places: IntArray
    distributions: FloatArray
    tokens: IntArray
    masses: FloatArray


class TreeExpander(Expander, Protocol):
    """Optional extension of `Expander`: a drafter that can grow a tree in one call."""

    @property
    def fuses_trees(self) -> bool:
        """Whether the drafter supports it. If False, `Expander.expand` grows the tree level by level."""
        ...

    def expand_tree(self, root: int, growth: FusedTreeSpec) -> list[FusedTreeLevel]:
        """Return the levels of a tree below `root`. C is at most V. Nodes below a token of mass 0 have no meaning.

        The arrays may be views of buffers that the next call overwrites.

        May only be the first call of a cycle. It acts like `expand([root], [-1])`, which may still be called next and
        returns the root's distribution again without a pass; the drafted tokens are not kept as nodes. Each level
        counts as one drafter pass.
        """
        ...


class WindowExpander(Expander, Protocol):
    """Optional extension of `Expander`: a drafter with a Jacobi window of drafts (see `algos.spatial.jacobi`)."""

    @property
    def window_length(self) -> int:
        """The largest number of drafts in the window; 0 if there is no window."""
        ...

    def draft_window(self, length: int, chance: Chance) -> DraftTree:
        """Return up to `length` >= 1 drafts of the window as a tree below the root, without a drafter pass."""
        ...


def has_window(drafter: object) -> TypeGuard[WindowExpander]:
    """Whether the drafter has a Jacobi window in addition to its own drafts."""
    return getattr(drafter, "window_length", 0) > 0


class Policy(Protocol):
    """A tree policy: decides the shape of each draft tree. It may keep state within an image; `begin` resets it."""

    def begin(self, grid: Grid) -> None:
        """Start an image."""
        ...

    def grow(self, drafter: Expander, root: int, budget: Budget, chance: Chance) -> DraftTree:
        """Return a draft tree below token `root`, within `budget`."""
        ...

    def observe(self, tree: DraftTree, verdict: Verdict, cell: int) -> None:
        """Learn from a verdict; `cell` is the raster index of the cell that the root's children are drafts for."""
        ...

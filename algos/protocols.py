"""What rules and policies are, and the part of a drafter that a policy sees: the protocols of `algos`.

`algos.step` adds the target and the drafter themselves.
"""

from typing import Literal, NamedTuple, Protocol, Self, TypeGuard

from underpaint.algos.arrays import FloatArray, IntArray
from underpaint.algos.chance import Chance
from underpaint.algos.tree import DraftTree, Verdict


class Rule(Protocol):
    """An acceptance rule: which drafted nodes stay, and the one extra token."""

    def __call__(self, tree: DraftTree, probs: FloatArray, chance: Chance) -> Verdict:
        """Decide `tree` by the target distributions `probs` [N, V] (row i: the distribution of the token after node
        i)."""
        ...


class Grid(NamedTuple):
    """The image as cells in raster order."""

    height: int
    width: int

    @property
    def cells(self) -> int:
        """Cells in all."""
        return self.height * self.width

    @classmethod
    def read(cls, text: str) -> Self:
        """ "48x64" as 48 rows of 64 cells; ValueError for anything else."""
        rows, _, columns = text.partition("x")
        sides = [int(side) if side.isdecimal() and side.isascii() and len(side) < 5 else 0 for side in (rows, columns)]
        if min(sides) < 1:
            raise ValueError(f"--grid: expected ROWSxCOLUMNS of tokens, such as 48x48, got {text[:40]!r}")
        return cls(*sides)


class Budget(NamedTuple):
    """What a cycle may use. max_depth: deeper nodes would run past the image; max_nodes: root included."""

    max_depth: int
    max_nodes: int


class Expander(Protocol):
    """The part of a drafter that a policy sees."""

    @property
    def vocab_size(self) -> int:
        """V."""
        ...

    def expand(self, tokens: IntArray, parents: IntArray) -> FloatArray:
        """Add nodes and return the distribution of the token after each.

        tokens: [F] int64; parents: [F] int64, ids of nodes added before in this cycle. Ids count up from 0 in the
        order nodes were added; the first call of a cycle adds the root, ([root token], [-1]). Returns [F, V].
        One call is one drafter pass.
        """
        ...


class ChainExpander(Expander, Protocol):
    """What a drafter may have besides: it drafts a chain of its likeliest tokens in one call."""

    @property
    def fuses_chains(self) -> bool:
        """Whether it really can; where False, `Expander.expand` does it level by level."""
        ...

    def expand_chain(self, root: int, levels: int) -> IntArray:
        """The likeliest token after `root`, then the likeliest after that, and so on: [levels] int64, levels >= 1.

        The first call of a cycle: as `expand([root], [-1])`, and then as if the tokens had never been fed. Each level
        counts as a drafter pass.
        """
        ...


class PassKind(NamedTuple):
    """What a call of a model's engine costs by.

    form: "begin", the first pass of a picture, over its condition; "pass", any other pass over new positions; "chain",
        a call that drafts a chain; "sampled" or "ranked", a call that drafts a tree, by how siblings are chosen.
    levels: that the call drafts; 1 for a pass.
    size: new positions of a pass, and of a chain's call; of a tree, the nodes that each level below the root's expands.
    """

    form: Literal["begin", "pass", "chain", "sampled", "ranked"]
    levels: int
    size: int


class FusedTreeSpec(NamedTuple):
    """A tree to be grown in one call: L levels of drafted tokens, F nodes expanded in each, C children of each.

    places: [L, F] int64; places[l] says which candidates of level l the next one expands: the candidate in row r and
    column c is r * C + c. The first level has one row, the root's; the last row of `places` is not read. ranked: in
    their stead, the F of the largest product of probabilities along their paths (ties: the first), best first.
    uniforms: [L, F, C] float64; drawn: a node's children are drawn one after another from what is left of its
    distribution, by these, as `chance.index_of` does; else they are its likeliest tokens, likeliest first (ties: the
    lower token).
    """

    places: IntArray
    uniforms: FloatArray
    ranked: bool
    drawn: bool


class FusedTreeLevel(NamedTuple):
    """A level of a tree that was grown in one call.

    places: [F] int64, which candidates of the level above were expanded. distributions: [F, V]. tokens: [F, C] int64.
    masses: [F, C] float64, what each token had of its distribution when it was taken, at most 1; 0 where nothing was
    left to take.
    """

    places: IntArray
    distributions: FloatArray
    tokens: IntArray
    masses: FloatArray


class TreeExpander(Expander, Protocol):
    """What a drafter may have besides: it grows a tree in one call."""

    @property
    def fuses_trees(self) -> bool:
        """Whether it really can; where False, `Expander.expand` does it level by level."""
        ...

    def expand_tree(self, root: int, growth: FusedTreeSpec) -> list[FusedTreeLevel]:
        """The levels of a tree below `root`. C is at most V; what stands below a mass of 0 means nothing.

        The arrays may be views of buffers that the next call overwrites.

        The first call of a cycle: as `expand([root], [-1])`, which may still be the next call and says the root's
        distribution again without a pass, and then as if the others had never been fed. Each level counts as a drafter
        pass.
        """
        ...


class WindowExpander(Expander, Protocol):
    """What a drafter may have besides: a Jacobi window, whose drafts the target's last passes gave (see
    `algos.spatial.jacobi`)."""

    @property
    def window_length(self) -> int:
        """The most drafts in the window; 0 where there is none."""
        ...

    def draft_window(self, length: int, chance: Chance) -> DraftTree:
        """The window below the root, of at most `length` drafts, `length` >= 1, as a tree. No drafter pass."""
        ...


def has_window(drafter: object) -> TypeGuard[WindowExpander]:
    """Whether the drafter has a Jacobi window beside its own drafts."""
    return getattr(drafter, "window_length", 0) > 0


class Policy(Protocol):
    """A tree policy. It may carry state within an image; `begin` forgets it."""

    def begin(self, grid: Grid) -> None:
        """Start an image."""
        ...

    def grow(self, drafter: Expander, root: int, budget: Budget, chance: Chance) -> DraftTree:
        """The draft tree below token `root`, within `budget`."""
        ...

    def observe(self, tree: DraftTree, verdict: Verdict, cell: int) -> None:
        """Learn from a verdict; `cell` is the raster index that the root's children were drafted for."""
        ...

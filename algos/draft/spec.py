"""What a tree policy is: it grows the draft tree of each cycle, and learns from the verdict."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final, NamedTuple, Protocol, cast

from underpaint.algos.arrays import FloatArray, IntArray
from underpaint.algos.batched.spec import BatchedPolicyOf, no_batched_policy
from underpaint.algos.chance import Chance
from underpaint.algos.plugin_guard import check_answers
from underpaint.algos.registry import Registry, check_dataclass, check_reference
from underpaint.algos.tree import DRAWN, DraftTree, Drawn, Verdict


class Grid(NamedTuple):
    """The image as cells in raster order."""

    height: int
    width: int

    @property
    def cells(self) -> int:
        """Cells in all."""
        return self.height * self.width


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


@dataclass(frozen=True, slots=True)
class PolicySpec:
    """A policy's entry in the registry.

    make: a dataclass whose init fields are the settings and whose instances are policies.
    chain: its trees never have two children at one node.
    cost_aware: it chooses its trees by the engine's cost curve, the settings `verify_ms` and `draft_ms` (and, where it
        has them, `chain_ms` and `plain_ms`).
    examples: settings that make trees small enough for the property tests; one of them may be empty.
    batched: its form over many images at once; a test holds the two together.
    device: its form on the GPU, as `RuleSpec.device`: a function (policy, Room) -> Plan, see `runtime.device.plans`.
    """

    name: str
    make: Callable[..., Policy]
    drawn: Drawn
    source: str
    deviations: str = ""
    chain: bool = False
    cost_aware: bool = False
    examples: tuple[Mapping[str, Any], ...] = ()
    batched: BatchedPolicyOf = no_batched_policy
    device: str | None = None

    def __post_init__(self) -> None:
        """Raise ValueError where what a plug-in registers is no policy."""
        check_dataclass(f"policy '{self.name}'", self.make)
        check_answers(f"policy '{self.name}'", cast("type[Policy]", self.make), "grow", _not_a_tree)
        if self.drawn not in DRAWN:
            raise ValueError(f"policy '{self.name}': expected drawn of {', '.join(DRAWN)}, got {self.drawn!r}")
        check_reference(f"policy '{self.name}'", self.device)


def _not_a_tree(answer: object, *_: object) -> str | None:
    """What a policy should have answered; None where it is a draft tree."""
    return None if isinstance(answer, DraftTree) else "a DraftTree"


_HERE: Final = "underpaint.algos.draft"
POLICIES: Registry[PolicySpec] = Registry(
    "policy",
    "underpaint.policies",
    {
        "eagle2": f"{_HERE}.eagle2",
        "adt": f"{_HERE}.adt",
        "chain": f"{_HERE}.chain",
        "chain_top1": f"{_HERE}.chain",
        "eagle1": f"{_HERE}.eagle1",
        "static_top_k": f"{_HERE}.eagle1",
        "opt": f"{_HERE}.opt",
        "sequoia": f"{_HERE}.sequoia",
        "sequoia_top_k": f"{_HERE}.sequoia",
        "roofline": f"{_HERE}.roofline",
        "scheduled": f"{_HERE}.scheduled",
    },
)
"""A policy is one line here, and one module that registers its `PolicySpec`, imported when the name is asked for."""


def policy_spec_of(policy: Policy) -> PolicySpec | None:
    """The registered spec that made `policy`; None for a policy that no spec makes."""
    return next((spec for spec in POLICIES.loaded() if spec.make is type(policy)), None)

"""Traversal verification: judges a tree from its leaves to its root, each path as a whole."""

from collections.abc import Iterator
from dataclasses import dataclass

from underpaint.algos.accept.spec import RULES, RuleSpec
from underpaint.algos.accept.walk import excess, normalised, proposal_distributions
from underpaint.algos.arrays import FloatArray
from underpaint.algos.chance import At, Chance, Role
from underpaint.algos.tree import DRAWN, DraftTree, Verdict


@dataclass(slots=True)
class _Open:
    """A node whose children are being judged.

    weight: The probability that it is kept, given the rejections so far. distribution: [V] weights of the token after
    it, given the same; the target's own row until a child is judged, so that a leaf costs nothing unless it is kept.
    """

    node: int
    weight: float
    distribution: FloatArray
    children: list[int]
    proposals: Iterator[FloatArray]
    tried: int = 0
    drafted: FloatArray | None = None

    def next_child(self, tree: DraftTree) -> tuple[int, float] | None:
        """Return the next child and its weight min(1, weight p(x) / q(x)); None if no further child can be kept."""
        if self.tried == len(self.children) or self.weight == 0.0:
            return None
        if self.tried == 0:
            self.distribution = normalised(self.distribution)
        child = self.children[self.tried]
        self.tried += 1
        self.drafted = next(self.proposals)
        token = int(tree.tokens[child])
        return child, min(1.0, self.weight * float(self.distribution[token]) / float(self.drafted[token]))

    def reject(self) -> None:
        """Remove the rejected child's proposal: p <- norm([w p - q]_+), w <- z / (z + 1 - w), where z is its mass."""
        assert self.drafted is not None
        rest = excess(self.weight * self.distribution, self.drafted)
        total = float(rest.sum())
        if total > 0.0:
            self.weight = total / (total + (1.0 - self.weight))  # in this order, z of 1e-17 is not lost at w = 1
            self.distribution = rest / total
        elif self.weight < 1.0:
            self.weight = 0.0


@dataclass(frozen=True, slots=True)
class TraversalVerification:
    """Visit the tree depth first; keep a node by its weight once all its children are rejected (or it has none).

    arXiv 2505.12398. On a chain it is block verification. It uses only the proposal distribution of each child, so
    independent siblings, siblings without replacement and point proposals are all exact.
    """

    def __call__(self, tree: DraftTree, probs: FloatArray, chance: Chance) -> Verdict:
        below = tree.children()

        def enter(node: int, weight: float) -> _Open:
            return _Open(node, weight, probs[node], below[node], proposal_distributions(tree, node, below[node]))

        stack = [enter(0, 1.0)]
        while True:
            here = stack[-1]
            deeper = here.next_child(tree)
            if deeper is not None:
                stack.append(enter(*deeper))
                continue
            if len(stack) == 1 or chance.flip(here.weight, At(Role.ACCEPT, here.node)):
                role = Role.RESIDUAL if here.children else Role.BONUS
                return Verdict(
                    tuple(open_.node for open_ in stack[1:]), chance.draw(here.distribution, At(role, here.node))
                )
            stack.pop()
            stack[-1].reject()


SPEC = RULES.register(
    RuleSpec(
        name="traversal",
        make=TraversalVerification,
        promise="lossless",
        drawn=frozenset(DRAWN),
        source="arXiv 2505.12398",
        deviations="covers point proposals (top_k) too, as one-hot draft distributions",
        looks_ahead=True,
        device="underpaint.runtime.device.kernels.walk_traversal:traversal_walk",
    )
)

"""Copies of the lossless rules with parts to exchange for wrong ones; with the default parts they are right."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from underpaint.algos.arrays import FloatArray
from underpaint.algos.chance import At, Chance, Role
from underpaint.algos.tree import DraftTree, Verdict

TakeOut = Callable[[FloatArray, int], FloatArray]


def least(target: float, draft: float) -> float:
    return min(1.0, target / draft)


def owed(target: FloatArray, draft: FloatArray) -> FloatArray:
    rest = np.maximum(target - draft, 0.0)
    return rest / rest.sum() if rest.any() else target


def keep(draft: FloatArray, token: int) -> FloatArray:
    return draft


def take_out(draft: FloatArray, token: int) -> FloatArray:
    rest = draft.copy()
    rest[token] = 0.0
    return rest / rest.sum() if rest.any() else draft


@dataclass(frozen=True)
class TokenWise:
    """Multi-round sampling; `after=take_out` makes it the rule for siblings without replacement."""

    accept: Callable[[float, float], float] = least
    residual: Callable[[FloatArray, FloatArray], FloatArray] = owed
    after: TakeOut = keep
    draft_of: Callable[[DraftTree, int], FloatArray] = lambda tree, node: tree.draft_distribution(node)
    order: Callable[[list[int]], list[int]] = lambda children: children
    siblings: Callable[[DraftTree, list[int]], list[int]] = lambda tree, children: children
    distribution_row: Callable[[int, int], int] = lambda node, parent: node
    bonus_row: Callable[[int, int], int] = lambda node, parent: node
    emit_row: Callable[[FloatArray, FloatArray], FloatArray] = lambda residual, distribution: residual
    flip_at: Callable[[int, int], int] = lambda child, node: child
    cycle: Callable[[Chance], Chance] = lambda chance: chance
    deepest: int = 99

    def __call__(self, tree: DraftTree, probs: FloatArray, chance: Chance) -> Verdict:
        chance = self.cycle(chance)
        below = tree.children()
        path: list[int] = []
        node = 0
        while below[node] and len(path) < self.deepest:
            distribution = probs[self.distribution_row(node, max(0, int(tree.parents[node])))]
            child, residual = self._try(tree, node, below[node], distribution, chance)
            if child is None:
                return Verdict(tuple(path), chance.draw(self.emit_row(residual, distribution), At(Role.RESIDUAL, node)))
            path.append(child)
            node = child
        return Verdict(
            tuple(path), chance.draw(probs[self.bonus_row(node, max(0, int(tree.parents[node])))], At(Role.BONUS, node))
        )

    def _try(
        self, tree: DraftTree, node: int, children: list[int], distribution: FloatArray, chance: Chance
    ) -> tuple[int | None, FloatArray]:
        residual, draft = distribution, self.draft_of(tree, node)
        for child in self.order(self.siblings(tree, children)):
            token = int(tree.tokens[child])
            share = self.accept(float(residual[token]), max(float(draft[token]), 1e-300))
            if chance.flip(share, At(Role.ACCEPT, self.flip_at(child, node))):
                return child, residual
            residual = self.residual(residual, draft)
            draft = self.after(draft, token)
        return None, residual


@dataclass(frozen=True)
class Block:
    """Block verification. shift: how far h and the residual look past their node."""

    weigh: Callable[[float, float, float], float] = lambda weight, target, draft: min(1.0, weight * target / draft)
    shift: int = 0
    kept_share: Callable[[float, float], float] = lambda mass, weight: (
        1.0 if weight == 1.0 else mass / (mass + (1.0 - weight))
    )
    residual_weight: Callable[[float], float] = lambda weight: weight
    last_share: Callable[[float], float] = lambda weight: weight

    def __call__(self, tree: DraftTree, probs: FloatArray, chance: Chance) -> Verdict:
        last = tree.size - 1
        weights = [1.0]
        for node in range(1, last + 1):
            token = int(tree.tokens[node])
            weights.append(
                self.weigh(weights[-1], float(probs[node - 1, token]), float(tree.draft_distribution(node - 1)[token]))
            )
        if chance.flip(self.last_share(weights[last]), At(Role.ACCEPT, last)):
            return Verdict(tuple(range(1, last + 1)), chance.draw(probs[last], At(Role.BONUS, last)))
        for node in range(last - 1, 0, -1):
            seen = min(node + self.shift, last - 1)
            mass = float(np.maximum(weights[seen] * probs[seen] - tree.draft_distribution(seen), 0.0).sum())
            if chance.flip(self.kept_share(mass, weights[node]), At(Role.ACCEPT, node)):
                return Verdict(tuple(range(1, node + 1)), self._extra(tree, probs, weights, node, chance))
        return Verdict((), self._extra(tree, probs, weights, 0, chance))

    def _extra(self, tree: DraftTree, probs: FloatArray, weights: list[float], node: int, chance: Chance) -> int:
        residual = owed(self.residual_weight(weights[node]) * probs[node], tree.draft_distribution(node))
        return chance.draw(residual, At(Role.RESIDUAL, node))


@dataclass(frozen=True)
class Traversal:
    """Traversal verification of independent siblings, recursively."""

    update_weight: Callable[[float, float], float] = lambda mass, weight: (
        mass / (mass + (1.0 - weight)) if mass > 0.0 else float(weight == 1.0)
    )
    update_distribution: Callable[[float, FloatArray, FloatArray], FloatArray] = lambda weight, distribution, draft: (
        owed(weight * distribution, draft)
    )
    weigh: Callable[[float, float, float], float] = lambda weight, target, draft: min(1.0, weight * target / draft)

    def __call__(self, tree: DraftTree, probs: FloatArray, chance: Chance) -> Verdict:
        below = tree.children()

        def visit(node: int, weight: float) -> Verdict | None:
            distribution = probs[node]
            for child in below[node]:
                token = int(tree.tokens[child])
                draft = tree.draft_distribution(node)
                verdict = visit(child, self.weigh(weight, float(distribution[token]), float(draft[token])))
                if verdict is not None:
                    return verdict
                mass = float(np.maximum(weight * distribution - draft, 0.0).sum())
                weight, distribution = (
                    self.update_weight(mass, weight),
                    self.update_distribution(weight, distribution, draft),
                )
            if chance.flip(weight, At(Role.ACCEPT, node)):
                return Verdict(tree.path_to(node), chance.draw(distribution, At(Role.RESIDUAL, node)))
            return None

        return visit(0, 1.0) or Verdict((), chance.draw(probs[0], At(Role.SKIP, 0)))


@dataclass(frozen=True)
class Greedy:
    """Greedy match."""

    best_of: Callable[[FloatArray], int] = lambda distribution: int(np.argmax(distribution))
    extra_row: Callable[[int, int], int] = lambda node, parent: node

    def __call__(self, tree: DraftTree, probs: FloatArray, chance: Chance) -> Verdict:
        below = tree.children()
        path: list[int] = []
        node = 0
        while matching := [child for child in below[node] if tree.tokens[child] == self.best_of(probs[node])]:
            node = matching[0]
            path.append(node)
        return Verdict(tuple(path), self.best_of(probs[self.extra_row(node, max(0, int(tree.parents[node])))]))

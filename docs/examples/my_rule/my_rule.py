from underpaint.algos.chance import At, Role
from underpaint.algos.tree import Verdict


def keep_one(tree, probs, chance):
    weights = probs[0].copy()
    for child in tree.children()[0]:
        token = int(tree.tokens[child])
        if chance.flip(weights[token], At(Role.ACCEPT, child), weights.sum()):
            return Verdict((child,), chance.draw(probs[child], At(Role.BONUS, child)))
        weights[token] = 0.0
    return Verdict((), chance.draw(weights, At(Role.RESIDUAL, 0)))

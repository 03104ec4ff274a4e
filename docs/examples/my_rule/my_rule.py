from underpaint.algos.chance import At, Role
from underpaint.algos.tree import Verdict


def keep_one(tree, probs, chance):
    left = probs[0].copy()
    for child in tree.children()[0]:
        token = int(tree.tokens[child])
        if chance.flip(left[token], At(Role.ACCEPT, child), left.sum()):
            return Verdict((child,), chance.draw(probs[child], At(Role.BONUS, child)))
        left[token] = 0.0
    return Verdict((), chance.draw(left, At(Role.RESIDUAL, 0)))

"""Three verifiers for `underpaint certify`: a right one, a wrong one, and a right one that draws its own noise."""

import random


def drawn(weights, uniform):
    """The token that a uniform falls on; never one of weight 0."""
    left = uniform * sum(weights)
    last = 0
    for token, weight in enumerate(weights):
        if weight > 0:
            last = token
            if left < weight:
                return token
            left -= weight
    return last


def verify(draft, uniforms):
    """Point proposals (EAGLE-2): keep a child with its target probability, take it out on a rejection."""
    return decided(draft, uniforms, take_out=True)


def forgetful(draft, uniforms):
    """The same, but a rejected token stays in the distribution."""
    return decided(draft, uniforms, take_out=False)


def seeded(draft, seed):
    """The same as `verify`, by a generator of its own."""
    noise = random.Random(seed)
    return verify(draft, [noise.random() for _ in range(draft.tree.size + 1)])


def decided(draft, uniforms, take_out):
    parents, tokens = draft.tree.parents.tolist(), draft.tree.tokens.tolist()
    path, node = [], 0
    while True:
        left = draft.target_probs[node].tolist()
        kept = None
        for child in (child for child, above in enumerate(parents) if above == node):
            if uniforms[child] * sum(left) < left[tokens[child]]:
                kept = child
                break
            if take_out:
                left[tokens[child]] = 0.0
        if kept is None:
            return path, drawn(left, uniforms[-1])
        path.append(kept)
        node = kept

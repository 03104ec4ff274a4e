"""Verifiers for `underpaint certify`: right and wrong ones, one with its own noise, a relaxed one, and a session."""

import random


def drawn(weights, uniform):
    """The token that a uniform falls on; never one of weight 0."""
    remainder = uniform * sum(weights)
    last = 0
    for token, weight in enumerate(weights):
        if weight > 0:
            last = token
            if remainder < weight:
                return token
            remainder -= weight
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
        weights = draft.target_probs[node].tolist()
        accepted = None
        for child in (child for child, above in enumerate(parents) if above == node):
            if uniforms[child] * sum(weights) < weights[tokens[child]]:
                accepted = child
                break
            if take_out:
                weights[tokens[child]] = 0.0
        if accepted is None:
            return path, drawn(weights, uniforms[-1])
        path.append(accepted)
        node = accepted


def relaxed(draft, uniforms, share=0.05):
    """Draw one token, a share of the time the draft's first: as far off as that share at most."""
    mixed = (1.0 - share) * draft.target_probs[0]
    mixed[draft.tree.tokens[1]] += share
    return (), drawn(mixed.tolist(), uniforms[-1])


def session(models):
    """Draft a chain and verify it, token by token."""

    def cycle(tokens, uniforms):
        n, drafted = models.length, []
        for place in range(n):
            drafted.append(drawn(models.draft([*tokens, *drafted]).tolist(), uniforms[place]))
        for place, token in enumerate(drafted):
            context = [*tokens, *drafted[:place]]
            target, draft = models.target(context), models.draft(context)
            if not uniforms[n + place] * draft[token] < target[token]:
                residual = [max(0.0, p - q) for p, q in zip(target, draft, strict=True)]
                return [*drafted[:place], drawn(residual if any(residual) else target.tolist(), uniforms[-1])]
        return [*drafted, drawn(models.target([*tokens, *drafted]).tolist(), uniforms[-1])]

    return cycle

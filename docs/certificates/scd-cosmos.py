"""junhyukso/SCD, its sampler for Cosmos: parts from the target's distribution: extra token 0 is drawn, its target probability is 0; so it happens with probability 5.96e-08

Run: python scd-cosmos.py FOLDER   # of a clone of https://github.com/junhyukso/SCD at 7322379
"""
import __future__, ast, collections, contextlib, functools, math, random, sys, types
from math import inf
from pathlib import Path
from types import SimpleNamespace
import numpy as np
import torch
def load(path, *names, **given):
    kept = []
    for name in names:
        owner, _, method = name.partition('.')
        tops = ast.parse(path.read_text(encoding='utf-8')).body
        found = [one for one in tops if getattr(one, 'name', '') == owner]
        if method and found:
            found = [one for one in found[0].body if getattr(one, 'name', '') == method]
        if not found:
            raise ValueError(f'{path}: expected {name}; take the commit that the page names')
        kept.append(found[0])
    for one in (inner for top in kept for inner in ast.walk(top)):
        if isinstance(one, ast.FunctionDef | ast.ClassDef):
            one.decorator_list = []
        if isinstance(one, ast.ClassDef):
            one.bases, one.keywords = ([], [])
    space = {'torch': torch, 'F': torch.nn.functional, 'softmax': torch.nn.functional.softmax}
    space |= {'nn': torch.nn, 'random': random, 'np': np, 'math': math, **given}
    flags = __future__.annotations.compiler_flag
    exec(compile(ast.Module(body=kept, type_ignores=[]), str(path), 'exec', flags), space)
    return space[kept[0].name]
def _cumulated(weights):
    cumulated = np.add.accumulate(weights.astype(np.float64))
    total = float(cumulated[-1]) if cumulated.size else 0.0
    if not 0.0 < total < inf or float(np.minimum.reduce(weights)) < 0.0:
        raise ValueError(f'draw: expected non-negative weights with a positive finite sum, got sum {total!r} and minimum {float(weights.min(initial=inf))!r}; a distribution with no support cannot be drawn from')
    return cumulated
def index_of(weights, uniform):
    cumulated = _cumulated(weights)
    found = int(cumulated.searchsorted(uniform * cumulated[-1], side='right'))
    if found >= weights.size:
        found = int(np.flatnonzero(weights)[-1])
    return found
def scd(folder):
    place = folder / 'cosmos/cosmos1/models/autoregressive/sjd/speculative_sampler.py'
    sampler = load(place, 'CosmosSpeculativeSampler')()

    def verify(draft, uniforms):
        size = len(draft.target_probs)
        drafted = torch.from_numpy(draft.tree.draft_probs)
        advanced = torch.full((1, size), index_of(draft.target_probs[-1], float(uniforms[-1])))
        with scripted_noise(uniforms[1:-1], np.repeat(uniforms[-1:], size)):
            ids, found, _ = sampler(torch.from_numpy(draft.tree.tokens.copy())[None], advanced, torch.cat([drafted[:1], drafted[:-1]])[None], torch.from_numpy(draft.target_probs)[None])
        return (range(1, ids[0]), int(found[0, ids[0] - 1]))
    return verify
noise = iter([0.0, 0.0])
random.random = lambda: next(noise)
torch.rand = lambda shape, *_, **__: torch.tensor([next(noise) for _ in range(int(np.prod(shape)))]).reshape(shape)
torch.rand_like = lambda one, **_: torch.rand(one.shape)
theirs = SimpleNamespace(verify=scd(Path(sys.argv[1])))
P = {(): np.array([0.0, 1.0]), (0,): np.array([0.0, 1.0]), (1,): np.array([0.0, 1.0])}  # target's distribution after these tokens
Q = {(): np.array([1.0, 0.0]), (0,): np.array([1.0, 0.0]), (1,): np.array([1.0, 0.0])}  # drafter's
R = P  # the target's before logit processors
parents, drafts = [-1, 0], [(1.0, (0, 0))]  # (probability, tokens): what the drafter draws, node 0 is the root
after = [[(), (0,)]]  # tokens of the path to each node of each draft
random, count = np.random.default_rng(0), collections.Counter()
for _ in range(1):
    at = 0
    tokens, p, q = drafts[at][1], np.array([P[one] for one in after[at]]), np.array([Q[one] for one in after[at]])
    tree = types.SimpleNamespace(
        tokens=np.array(tokens), parents=np.array(parents), drawn='iid', draft_probs=q, size=len(tokens))
    draft = types.SimpleNamespace(
        tree=tree, target_probs=p.copy(), raw_probs=np.array([R[one] for one in after[at]]),
        allowed=~np.isin(np.arange(2), []))
    path, token = theirs.verify(draft, np.array([0.0, 0.0, 0.0]))
    out = [tokens[node] for node in path] + [int(token)]
    print(tokens, 'gives', out)

"""tyshiwo1/Accelerating-T2I-AR-with-SJD, its sampler at temperature 0.7: parts from the target's distribution: total variation 0.0518

Run: python sjd-temperature.py FOLDER   # of a clone of https://github.com/tyshiwo1/Accelerating-T2I-AR-with-SJD at b389cfb
"""
import __future__, ast, collections, contextlib, functools, math, random, sys, types
from pathlib import Path
from types import SimpleNamespace
import numpy as np
import torch
from math import inf
def load(path, *names, **given):
    tree = ast.parse(path.read_text(encoding='utf-8').expandtabs(4))
    for one in ast.walk(tree):
        if isinstance(one, ast.ClassDef):
            one.bases, one.keywords = ([], [])
        if isinstance(one, ast.FunctionDef | ast.ClassDef):
            one.decorator_list = []
    definitions = {one.name: one for one in reversed(tree.body) if isinstance(one, ast.FunctionDef | ast.ClassDef)}
    definitions |= {f'{name}.{one.name}': one for name in definitions for one in definitions[name].body if hasattr(one, 'name')}
    if (missing := [name for name in names if name not in definitions]):
        raise ValueError(f'{path}: expected {missing[0]}; take the commit that the page names')
    space = {'torch': torch, 'nn': torch.nn, 'F': torch.nn.functional, 'np': np, 'math': math}
    space |= {'softmax': torch.nn.functional.softmax, 'random': random, **given}
    module = ast.Module(body=[definitions[name] for name in names], type_ignores=[])
    flags = __future__.annotations.compiler_flag
    exec(compile(module, str(path), 'exec', flags), space)
    return space[definitions[names[0]].name]
def _cumulated(weights):
    cumulated = np.add.accumulate(weights.astype(np.float64))
    total = float(cumulated[-1]) if cumulated.size else 0.0
    if not 0.0 < total < inf or float(np.minimum.reduce(weights)) < 0.0:
        raise ValueError(f'draw: expected non-negative weights with a positive finite sum, got sum {total!r} and minimum {float(weights.min(initial=inf))!r}; a distribution with no support cannot be drawn from')
    return cumulated
def index_of(weights, uniform):
    cumulated = _cumulated(weights)
    index = int(cumulated.searchsorted(uniform * cumulated[-1], side='right'))
    if index >= weights.size:
        index = int(np.flatnonzero(weights)[-1])
    return index
def sjd(folder, place='scheduler/jacobi_iteration_lumina_mgpt.py', **settings):
    temperature, top_k = (settings.get('temperature', 1.0), int(settings.get('top_k', 0)))

    def warper(_, scores):
        scores = scores / temperature
        if top_k:
            scores = scores.masked_fill(scores < torch.topk(scores, top_k)[0][..., -1:], -torch.inf)
        return scores
    sampler = load(folder / place, 'SpeculativeSampler')(reject_sampling_relative_ids=torch.zeros(1), reject_sampling_draft_token_logits=torch.zeros(1, 1), sampling_last_draft_token=torch.zeros(1))

    def verify(draft, uniforms):
        size, vocab_size = draft.target_probs.shape
        sampler.reject_sampling_draft_token_logits = torch.zeros(1, vocab_size, dtype=torch.float64)
        target, drafted = (torch.from_numpy(draft.target_probs)[None], torch.from_numpy(draft.tree.draft_probs))
        drafted = torch.cat([drafted[:1], drafted[:-1]])[None]
        advanced = torch.full((1, size), index_of(draft.target_probs[-1], float(uniforms[-1])))
        more = (drafted.log(), target.log()) if 'grouped' in settings else ()
        tests = np.tile(np.repeat(uniforms[:-1], vocab_size), 2)
        with scripted_noise(tests, np.repeat(uniforms[-1:], size)):
            ids, tokens, _ = sampler(torch.from_numpy(draft.tree.tokens.copy())[None], advanced, drafted, target, *more, None, warper, torch.zeros(1, 0, dtype=torch.long), head_img_sims=torch.zeros(vocab_size, vocab_size))
        return (range(1, ids[0]), int(tokens[0, ids[0] - 1]))
    return verify
scripted_noise = lambda *_: contextlib.nullcontext()  # theirs
theirs = SimpleNamespace(verify=sjd(Path(sys.argv[1]), temperature=0.7))
P = {(): np.array([0.5, 0.5, 0.0]), (0,): np.array([0.5, 0.5, 0.0]), (1,): np.array([0.5, 0.5, 0.0]), (2,): np.array([0.5, 0.5, 0.0])}  # target's distribution after these tokens
Q = {(): np.array([0.3333333333333333, 0.0, 0.6666666666666666]), (0,): np.array([0.3333333333333333, 0.0, 0.6666666666666666]), (1,): np.array([0.3333333333333333, 0.0, 0.6666666666666666]), (2,): np.array([0.3333333333333333, 0.0, 0.6666666666666666])}  # drafter's
R = P  # the target's before logit processors
parents, drafts = [-1, 0], [(0.333333333333, (0, 0)), (0.666666666667, (0, 2))]  # (probability, tokens): what the drafter draws, node 0 is the root
after = [[(), (0,)], [(), (2,)]]  # tokens of the path to each node of each draft
random, count = np.random.default_rng(0), collections.Counter()
for _ in range(20000):
    at = random.choice(len(drafts), p=[one[0] for one in drafts])
    tokens, p, q = drafts[at][1], np.array([P[one] for one in after[at]]), np.array([Q[one] for one in after[at]])
    tree = types.SimpleNamespace(
        tokens=np.array(tokens), parents=np.array(parents), drawn='iid', draft_probs=q, size=len(tokens))
    draft = types.SimpleNamespace(
        tree=tree, target_probs=p.copy(), raw_probs=np.array([R[one] for one in after[at]]),
        allowed=~np.isin(np.arange(3), []))
    path, token = theirs.verify(draft, random.random(len(tokens) + 1))
    out = [tokens[node] for node in path] + [int(token)]
    before, got = (), len(())
    out = [int(one) for one in out]
    while len(out) <= got:  # go on as the target does
        out.append(int(random.choice(3, p=P[tuple(out)])))
    if tuple(out[:got]) == before:
        count[out[got]] += 1
print("next token after", before, "should have", [0.5, 0.5, 0.0])
print("it has", [round(count[token] / max(1, count.total()), 4) for token in range(3)], "of", count.total())

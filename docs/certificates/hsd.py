"""ZhouYuxuanYX/Hierarchical-Speculative-Decoding, _speculative_sampling for one draft, capped (backward, clever), with its tabs expanded: parts from the target's distribution: total variation 0.05556

Run: python hsd.py FOLDER   # of a clone of https://github.com/ZhouYuxuanYX/Hierarchical-Speculative-Decoding at b8575e2
"""
import __future__, ast, collections, contextlib, functools, math, random, sys, types
from pathlib import Path
from types import SimpleNamespace
import numpy as np
import torch
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
def hsd(folder):
    decide = load(folder / 'transformers/generation/utils.py', '_speculative_sampling')

    def verify(draft, uniforms):
        length = draft.tree.size - 1
        with np.errstate(divide='ignore'):
            drafted, target = (torch.from_numpy(np.log(one))[None] for one in (draft.tree.draft_probs, draft.target_probs))
        noise = np.concatenate([[0.5], uniforms[:length - 1], np.full(length, uniforms[length - 1])])
        with scripted_noise(noise, uniforms[length:]):
            valid_tokens, accepted_count, _ = decide(torch.from_numpy(draft.tree.tokens.copy())[None], drafted[:, :length], length, target, torch.tensor([False]), backward=True, clever=True, stop=lambda ids, scores: False)
        return (range(1, int(accepted_count) + 1), int(valid_tokens[0, -1]))
    return verify
scripted_noise = lambda *_: contextlib.nullcontext()  # theirs
theirs = SimpleNamespace(verify=hsd(Path(sys.argv[1])))
P = {(): np.array([0.5, 0.5]), (0,): np.array([0.5, 0.5]), (1,): np.array([0.5, 0.5]), (0, 0): np.array([0.5, 0.5]), (0, 1): np.array([0.5, 0.5]), (1, 0): np.array([0.5, 0.5]), (1, 1): np.array([0.5, 0.5])}  # target's distribution after these tokens
Q = {(): np.array([0.3333333333333333, 0.6666666666666666]), (0,): np.array([0.3333333333333333, 0.6666666666666666]), (1,): np.array([0.3333333333333333, 0.6666666666666666]), (0, 0): np.array([0.3333333333333333, 0.6666666666666666]), (0, 1): np.array([0.3333333333333333, 0.6666666666666666]), (1, 0): np.array([0.3333333333333333, 0.6666666666666666]), (1, 1): np.array([0.3333333333333333, 0.6666666666666666])}  # drafter's
R = P  # the target's before logit processors
parents, drafts = [-1, 0, 1], [(0.1111111111111111, (0, 0, 0)), (0.2222222222222222, (0, 0, 1)), (0.2222222222222222, (0, 1, 0)), (0.4444444444444444, (0, 1, 1))]  # (probability, tokens): what the drafter draws, node 0 is the root
after = [[(), (0,), (0, 0)], [(), (0,), (0, 1)], [(), (1,), (1, 0)], [(), (1,), (1, 1)]]  # tokens of the path to each node of each draft
random, count = np.random.default_rng(0), collections.Counter()
for _ in range(20000):
    at = random.choice(len(drafts), p=[one[0] for one in drafts])
    tokens, p, q = drafts[at][1], np.array([P[one] for one in after[at]]), np.array([Q[one] for one in after[at]])
    tree = types.SimpleNamespace(
        tokens=np.array(tokens), parents=np.array(parents), drawn='iid', draft_probs=q, size=len(tokens))
    draft = types.SimpleNamespace(
        tree=tree, target_probs=p.copy(), raw_probs=np.array([R[one] for one in after[at]]),
        allowed=~np.isin(np.arange(2), []))
    path, token = theirs.verify(draft, random.random(len(tokens) + 1))
    out = [tokens[node] for node in path] + [int(token)]
    before, got = (0,), len((0,))
    out = [int(one) for one in out]
    while len(out) <= got:  # go on as the target does
        out.append(int(random.choice(2, p=P[tuple(out)])))
    if tuple(out[:got]) == before:
        count[out[got]] += 1
print("next token after", before, "should have", [0.5, 0.5])
print("it has", [round(count[token] / max(1, count.total()), 4) for token in range(2)], "of", count.total())

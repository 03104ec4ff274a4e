"""jadohu/LANTERN, static trees, relaxation off: parts from the target's distribution: token 0 is accepted, its target probability is 0; so it happens with probability 2.78e-17

Run: python lantern-static-off.py FOLDER   # of a clone of https://github.com/jadohu/LANTERN at 3a56e45
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
def offered_by(draft, node, token, tried):
    if draft.tree.drawn == 'top_k':
        point = np.eye(draft.target_probs.shape[1])[token]
        return point
    row = draft.tree.draft_distribution(node).copy()
    if draft.tree.drawn == 'without_replacement':
        row[list(tried)] = 0.0
    row /= row.sum()
    return row
def nearest(size):
    near = [sorted(range(size), key=lambda other, own=own: abs(other - own)) for own in range(size)]
    return SimpleNamespace(nearest_latents=torch.tensor([[*row, row[-1]] for row in near]))
def lantern_static(folder, relaxed):
    verify = load(folder / 'models/ea_model_llamagen.py', 'EaModel.evaluate_posterior_v1')

    def called(draft, uniforms):
        tree = draft.tree
        paths = sorted(([0, *tree.path_to(leaf)] for leaf in tree.leaves))
        longest = max(map(len, paths))
        at = np.array([path + [-1] * (longest - len(path)) for path in paths])
        parents = tree.parents.tolist()
        before = [[one for one in range(1, node) if parents[one] == parents[node]] for node in range(tree.size)]
        offered = [offered_by(draft, max(0, parents[node]), token, [int(tree.tokens[one]) for one in before[node]])[token] for node, token in enumerate(tree.tokens.tolist())]
        with scripted_noise(uniforms[1:-1], uniforms[-1:]):
            best, accepted, left = verify(nearest(len(draft.allowed)), torch.log(torch.from_numpy(draft.target_probs))[at], torch.from_numpy(np.where(at < 0, -1, tree.tokens[at])), lambda _, rows: rows, torch.tensor(offered, dtype=torch.float64)[at], [torch.from_numpy(tree.draft_probs.copy())] * longest, np.array(parents)[at].tolist(), torch.from_numpy(tree.tokens.copy())[None], [[torch.tensor(before[node], dtype=torch.long) for node in row] for row in at], relaxed, 1, 0.1)
            return (paths[int(best)][1:accepted + 1], int(torch.multinomial(left, 1)))
    return called
noise = iter([0.0, 0.0])
random.random = lambda: next(noise)
torch.rand = lambda shape, *_, **__: torch.tensor([next(noise) for _ in range(int(np.prod(shape)))]).reshape(shape)
torch.rand_like = lambda one, **_: torch.rand(one.shape)
theirs = SimpleNamespace(verify=lantern_static(Path(sys.argv[1]), relaxed=False))
P = {(): np.array([0.0, 1.0]), (0,): np.array([0.0, 1.0]), (1,): np.array([0.0, 1.0])}  # target's distribution after these tokens
Q = {(): np.array([0.25, 0.75]), (0,): np.array([0.25, 0.75]), (1,): np.array([0.25, 0.75])}  # drafter's
R = P  # the target's before logit processors
parents, drafts = [-1, 0], [(0.25, (0, 0)), (0.75, (0, 1))]  # (probability, tokens): what the drafter draws, node 0 is the root
after = [[(), (0,)], [(), (1,)]]  # tokens of the path to each node of each draft
random, count = np.random.default_rng(0), collections.Counter()
for _ in range(1):
    at = 0
    tokens, p, q = drafts[at][1], np.array([P[one] for one in after[at]]), np.array([Q[one] for one in after[at]])
    tree = types.SimpleNamespace(
        tokens=np.array(tokens), parents=np.array(parents), drawn='without_replacement', draft_probs=q, size=len(tokens))
    draft = types.SimpleNamespace(
        tree=tree, target_probs=p.copy(), raw_probs=np.array([R[one] for one in after[at]]),
        allowed=~np.isin(np.arange(2), []))
    path, token = theirs.verify(draft, np.array([0.0, 0.0, 0.0]))
    out = [tokens[node] for node in path] + [int(token)]
    print(tokens, 'gives', out)

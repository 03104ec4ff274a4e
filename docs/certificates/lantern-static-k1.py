"""jadohu/LANTERN, static trees, one neighbour, delta 0.1: parts from the target's distribution: total variation 0.1005

Run: python lantern-static-k1.py FOLDER   # of a clone of https://github.com/jadohu/LANTERN at 3a56e45
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
scripted_noise = lambda *_: contextlib.nullcontext()  # theirs
theirs = SimpleNamespace(verify=lantern_static(Path(sys.argv[1]), relaxed=True))
P = {(): np.array([0.2727272727272727, 0.18181818181818182, 0.45454545454545453, 0.09090909090909091]), (0,): np.array([0.2727272727272727, 0.18181818181818182, 0.45454545454545453, 0.09090909090909091]), (1,): np.array([0.2727272727272727, 0.18181818181818182, 0.45454545454545453, 0.09090909090909091]), (2,): np.array([0.2727272727272727, 0.18181818181818182, 0.45454545454545453, 0.09090909090909091]), (3,): np.array([0.2727272727272727, 0.18181818181818182, 0.45454545454545453, 0.09090909090909091])}  # target's distribution after these tokens
Q = {(): np.array([0.4166666666666667, 0.08333333333333333, 0.25, 0.25]), (0,): np.array([0.4166666666666667, 0.08333333333333333, 0.25, 0.25]), (1,): np.array([0.4166666666666667, 0.08333333333333333, 0.25, 0.25]), (2,): np.array([0.4166666666666667, 0.08333333333333333, 0.25, 0.25]), (3,): np.array([0.4166666666666667, 0.08333333333333333, 0.25, 0.25])}  # drafter's
R = P  # the target's before logit processors
parents, drafts = [-1, 0], [(0.416666666667, (0, 0)), (0.083333333333, (0, 1)), (0.25, (0, 2)), (0.25, (0, 3))]  # (probability, tokens): what the drafter draws, node 0 is the root
after = [[(), (0,)], [(), (1,)], [(), (2,)], [(), (3,)]]  # tokens of the path to each node of each draft
random, count = np.random.default_rng(0), collections.Counter()
for _ in range(20000):
    at = random.choice(len(drafts), p=[one[0] for one in drafts])
    tokens, p, q = drafts[at][1], np.array([P[one] for one in after[at]]), np.array([Q[one] for one in after[at]])
    tree = types.SimpleNamespace(
        tokens=np.array(tokens), parents=np.array(parents), drawn='without_replacement', draft_probs=q, size=len(tokens))
    draft = types.SimpleNamespace(
        tree=tree, target_probs=p.copy(), raw_probs=np.array([R[one] for one in after[at]]),
        allowed=~np.isin(np.arange(4), []))
    path, token = theirs.verify(draft, random.random(len(tokens) + 1))
    out = [tokens[node] for node in path] + [int(token)]
    before, got = (), len(())
    out = [int(one) for one in out]
    while len(out) <= got:  # go on as the target does
        out.append(int(random.choice(4, p=P[tuple(out)])))
    if tuple(out[:got]) == before:
        count[out[got]] += 1
print("next token after", before, "should have", [0.2727, 0.1818, 0.4545, 0.0909])
print("it has", [round(count[token] / max(1, count.total()), 4) for token in range(4)], "of", count.total())

"""hemingkx/Spec-Bench, EAGLE-3's evaluate_posterior, with logit processors: parts from the target's distribution: total variation 0.5

Run: python spec-bench-eagle3.py FOLDER   # of a clone of https://github.com/hemingkx/Spec-Bench at fd2c1cd
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
def posterior(folder, place):
    verify = load(folder / place, 'evaluate_posterior')

    def called(logits, candidates, retrieve_indices, logits_processor):
        return verify(torch.from_numpy(logits), torch.from_numpy(candidates), logits_processor)
    return called
scripted_noise = lambda *_: contextlib.nullcontext()  # theirs
theirs = SimpleNamespace(verify=posterior(Path(sys.argv[1]), place='model/eagle3/utils.py'))
P = {(): np.array([1.0, 0.0]), (0,): np.array([1.0, 0.0]), (1,): np.array([1.0, 0.0])}  # target's distribution after these tokens
Q = {(): np.array([1.0, 0.0]), (0,): np.array([1.0, 0.0]), (1,): np.array([1.0, 0.0])}  # drafter's
R = {(): np.array([0.5, 0.5]), (0,): np.array([0.5, 0.5]), (1,): np.array([0.5, 0.5])}  # the target's before logit processors
parents, drafts = [-1, 0], [(1.0, (0, 0))]  # (probability, tokens): what the drafter draws, node 0 is the root
after = [[(), (0,)]]  # tokens of the path to each node of each draft
random, count = np.random.default_rng(0), collections.Counter()
for _ in range(20000):
    at = random.choice(len(drafts), p=[one[0] for one in drafts])
    tokens, p, q = drafts[at][1], np.array([P[one] for one in after[at]]), np.array([Q[one] for one in after[at]])
    paths, banned, p = [[0, 1]], [1], np.array([R[one] for one in after[at]])
    logits = np.log(np.maximum(p, 1e-38)).astype("f4")[paths]
    def processor(_, scores):
        scores = scores.clone() if hasattr(scores, "clone") else scores.copy()
        scores[..., banned] = -np.inf
        return scores
    best, accepted, left = theirs.verify(
        logits=logits, candidates=np.where(np.array(paths) < 0, -1, np.array(tokens)[paths]),
        retrieve_indices=np.array(paths), logits_processor=processor)
    left = np.asarray(left, "f8").reshape(-1)
    out = [tokens[node] for node in paths[int(best)][1 : int(accepted) + 1]]
    out.append(int(random.choice(len(left), p=left / left.sum())))
    before, got = (0,), len((0,))
    out = [int(one) for one in out]
    while len(out) <= got:  # go on as the target does
        out.append(int(random.choice(2, p=P[tuple(out)])))
    if tuple(out[:got]) == before:
        count[out[got]] += 1
print("next token after", before, "should have", [1.0, 0.0])
print("it has", [round(count[token] / max(1, count.total()), 4) for token in range(2)], "of", count.total())

"""jadohu/LANTERN, dynamic trees, relaxation off: parts from the target's distribution: token 1 is accepted, its target probability is 0; so it happens with probability 5.96e-08

Run: python lantern-off.py FOLDER   # of a clone of https://github.com/jadohu/LANTERN at 3a56e45
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
def nearest(size):
    near = [sorted(range(size), key=lambda other, code=code: abs(other - code)) for code in range(size)]
    return SimpleNamespace(nearest_latents=torch.tensor([[*row, row[-1]] for row in near]))
def lantern(folder, k, relaxed):
    verify = load(folder / 'models/ea_model_llamagen.py', 'EaModel.evaluate_posterior')

    def called(logits, candidates, retrieve_indices, logits_processor):
        size = logits.shape[-1]
        tensors = (torch.from_numpy(logits), torch.from_numpy(candidates), logits_processor)
        return verify(nearest(size), *tensors, relaxed, min(k, size - 1), 0.1)
    return called
noise = iter([0.0, 0.0])
random.random = lambda: next(noise)
torch.rand = lambda shape, *_, **__: torch.tensor([next(noise) for _ in range(int(np.prod(shape)))]).reshape(shape)
torch.rand_like = lambda one, **_: torch.rand(one.shape)
theirs = SimpleNamespace(verify=lantern(Path(sys.argv[1]), k=1, relaxed=False))
P = {(): np.array([1.0, 0.0]), (0,): np.array([1.0, 0.0]), (1,): np.array([1.0, 0.0])}  # target's distribution after these tokens
Q = {(): np.array([0.25, 0.75]), (0,): np.array([0.5, 0.5]), (1,): np.array([0.25, 0.75])}  # drafter's
R = {(): np.array([1.0, 0.0]), (0,): np.array([1.0, 0.0]), (1,): np.array([1.0, 0.0])}  # the target's before logit processors
parents, drafts = [-1, 0], [(1.0, (0, 1))]  # (probability, tokens): what the drafter draws, node 0 is the root
after = [[(), (1,)]]  # tokens of the path to each node of each draft
random, count = np.random.default_rng(0), collections.Counter()
for _ in range(1):
    at = 0
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
    print(tokens, 'gives', out)

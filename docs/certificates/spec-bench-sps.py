"""hemingkx/Spec-Bench, SpS's _speculative_sampling: parts from the target's distribution: token 0 is accepted, its target probability is 0; so it happens with probability 5.96e-08

Run: python spec-bench-sps.py FOLDER   # of a clone of https://github.com/hemingkx/Spec-Bench at fd2c1cd
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
def spec_bench(folder):
    verify = load(folder / 'model/sps/decoding.py', '_speculative_sampling')

    def called(candidate_input_ids, candidate_logits, candidate_length, new_logits):
        arrays = (torch.from_numpy(candidate_input_ids), torch.from_numpy(candidate_logits))
        return verify(*arrays, candidate_length, torch.from_numpy(new_logits), False, candidate_length)
    return called
noise = iter([0.0, 0.0])
random.random = lambda: next(noise)
torch.rand = lambda shape, *_, **__: torch.tensor([next(noise) for _ in range(int(np.prod(shape)))]).reshape(shape)
torch.rand_like = lambda one, **_: torch.rand(one.shape)
theirs = SimpleNamespace(verify=spec_bench(Path(sys.argv[1])))
P = {(): np.array([0.0, 1.0]), (0,): np.array([0.0, 1.0]), (1,): np.array([0.0, 1.0])}  # target's distribution after these tokens
Q = {(): np.array([1.0, 0.0]), (0,): np.array([1.0, 0.0]), (1,): np.array([1.0, 0.0])}  # drafter's
parents, drafts = [-1, 0], [(1.0, (0, 0))]  # (probability, tokens): what the drafter draws, node 0 is the root
after = [[(), (0,)]]  # tokens of the path to each node of each draft
random, count = np.random.default_rng(0), collections.Counter()
for _ in range(1):
    at = 0
    tokens, p, q = drafts[at][1], np.array([P[one] for one in after[at]]), np.array([Q[one] for one in after[at]])
    logits = [np.log(np.maximum(one, 1e-38))[None].astype("f4") for one in (q[:-1], p)]
    out = theirs.verify(
        candidate_input_ids=np.array([tokens]), candidate_logits=logits[0],
        candidate_length=len(tokens) - 1, new_logits=logits[1])
    out = np.asarray(out[0]).reshape(-1)[: int(out[1]) + 1].tolist()
    print(tokens, 'gives', out)

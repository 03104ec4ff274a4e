"""flashinfer-ai/flashinfer, the reference of its trace: parts from the target's distribution: total variation 0.5

Run: python flashinfer-reference.py FOLDER   # of a clone of https://github.com/flashinfer-ai/flashinfer at fb28d72
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
def flashinfer_reference(folder):
    verify = load(folder / 'flashinfer/trace/templates/sampling.py', '_chain_speculative_sampling_reference')

    def kernel(draft_probs, draft_token_ids, uniform_samples, target_probs):
        return verify(*map(torch.from_numpy, (draft_probs, draft_token_ids, target_probs))).numpy()
    return kernel
scripted_noise = lambda *_: contextlib.nullcontext()  # theirs
theirs = SimpleNamespace(verify=flashinfer_reference(Path(sys.argv[1])))
P = {(): np.array([0.5, 0.5])}  # target's distribution after these tokens
Q = {(): np.array([1.0, 0.0])}  # drafter's
parents, drafts = [-1], [(1.0, (0,))]  # (probability, tokens): what the drafter draws, node 0 is the root
after = [[()]]  # tokens of the path to each node of each draft
random, count = np.random.default_rng(0), collections.Counter()
for _ in range(20000):
    at = random.choice(len(drafts), p=[one[0] for one in drafts])
    tokens, p, q = drafts[at][1], np.array([P[one] for one in after[at]]), np.array([Q[one] for one in after[at]])
    out = theirs.verify(
        draft_probs=q[None, :-1].astype("f4"), draft_token_ids=np.array([tokens[1:]], "i4"),
        uniform_samples=random.random((1, len(tokens)), "f4"), target_probs=p[None].astype("f4"))[0]
    out = [int(token) for token in out if token >= 0]
    before, got = (), len(())
    out = [int(one) for one in out]
    while len(out) <= got:  # go on as the target does
        out.append(int(random.choice(2, p=P[tuple(out)])))
    if tuple(out[:got]) == before:
        count[out[got]] += 1
print("next token after", before, "should have", [0.5, 0.5])
print("it has", [round(count[token] / max(1, count.total()), 4) for token in range(2)], "of", count.total())

"""feifeibear/LLMSpeculativeSampling, speculative_sampling with random_seed, token 0 returned: parts from the target's distribution: total variation 0.04239

Run: python feifeibear-seed.py FOLDER   # of a clone of https://github.com/feifeibear/LLMSpeculativeSampling at 59a209d
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
class Cache:

    def __init__(self, model, *_):
        self.tokens, self.rows, self._prob_history = (model.tokens, model.rows, None)

    def generate(self, prefix, count):
        self._prob_history = self.rows[None].clone()
        return torch.cat([prefix, torch.tensor([self.tokens])], dim=1) if self.tokens else prefix

    def rollback(self, end):
        self._prob_history = self._prob_history[:, :end]
def tensors(draft_probs, target_probs):
    return (torch.from_numpy(draft_probs), torch.from_numpy(target_probs))
def feifeibear_seed(folder):
    max_fn = load(folder / 'sampling/utils.py', 'max_fn')
    loop = load(folder / 'sampling/speculative_sampling.py', 'speculative_sampling', sample=lambda row: torch.multinomial(row, 1), max_fn=max_fn, KVCacheModel=Cache)

    def verify(draft, seed):
        tokens = draft.tree.tokens[1:].tolist()
        drafted, target = tensors(draft.tree.draft_probs[:-1].copy(), draft.target_probs)
        drafter = SimpleNamespace(device='cpu', tokens=tokens, rows=drafted)
        model = SimpleNamespace(device='cpu', tokens=[], rows=target)
        out = loop(torch.tensor([[0]]), drafter, model, 1, len(tokens), random_seed=seed + 1)[0, 1:].tolist()
        return (range(1, len(out)), out[-1])
    return verify
scripted_noise = lambda *_: contextlib.nullcontext()  # theirs
theirs = SimpleNamespace(verify=feifeibear_seed(Path(sys.argv[1])))
P = {(): np.array([0.3, 0.2, 0.5]), (0,): np.array([0.125, 0.625, 0.25]), (1,): np.array([0.2857142857142857, 0.14285714285714285, 0.5714285714285714]), (2,): np.array([0.3, 0.2, 0.5]), (0, 0): np.array([0.3, 0.2, 0.5]), (0, 1): np.array([0.2857142857142857, 0.14285714285714285, 0.5714285714285714]), (0, 2): np.array([0.125, 0.625, 0.25]), (1, 0): np.array([0.125, 0.625, 0.25]), (1, 1): np.array([0.3, 0.2, 0.5]), (1, 2): np.array([0.2857142857142857, 0.14285714285714285, 0.5714285714285714]), (2, 0): np.array([0.2857142857142857, 0.14285714285714285, 0.5714285714285714]), (2, 1): np.array([0.125, 0.625, 0.25]), (2, 2): np.array([0.3, 0.2, 0.5])}  # target's distribution after these tokens
Q = {(): np.array([0.5555555555555556, 0.1111111111111111, 0.3333333333333333]), (0,): np.array([0.5, 0.25, 0.25]), (1,): np.array([0.5555555555555556, 0.1111111111111111, 0.3333333333333333]), (2,): np.array([0.5, 0.25, 0.25]), (0, 0): np.array([0.5, 0.25, 0.25]), (0, 1): np.array([0.5, 0.25, 0.25]), (0, 2): np.array([0.5, 0.25, 0.25]), (1, 0): np.array([0.5555555555555556, 0.1111111111111111, 0.3333333333333333]), (1, 1): np.array([0.5555555555555556, 0.1111111111111111, 0.3333333333333333]), (1, 2): np.array([0.5555555555555556, 0.1111111111111111, 0.3333333333333333]), (2, 0): np.array([0.5, 0.25, 0.25]), (2, 1): np.array([0.5, 0.25, 0.25]), (2, 2): np.array([0.5, 0.25, 0.25])}  # drafter's
R = P  # the target's before logit processors
parents, drafts = [-1, 0, 1], [(0.277777777778, (0, 0, 0)), (0.138888888889, (0, 0, 1)), (0.138888888889, (0, 0, 2)), (0.061728395062, (0, 1, 0)), (0.012345679012, (0, 1, 1)), (0.037037037037, (0, 1, 2)), (0.166666666667, (0, 2, 0)), (0.083333333333, (0, 2, 1)), (0.083333333333, (0, 2, 2))]  # (probability, tokens): what the drafter draws, node 0 is the root
after = [[(), (0,), (0, 0)], [(), (0,), (0, 1)], [(), (0,), (0, 2)], [(), (1,), (1, 0)], [(), (1,), (1, 1)], [(), (1,), (1, 2)], [(), (2,), (2, 0)], [(), (2,), (2, 1)], [(), (2,), (2, 2)]]  # tokens of the path to each node of each draft
random, count = np.random.default_rng(0), collections.Counter()
for _ in range(20000):
    at = random.choice(len(drafts), p=[one[0] for one in drafts])
    tokens, p, q = drafts[at][1], np.array([P[one] for one in after[at]]), np.array([Q[one] for one in after[at]])
    tree = types.SimpleNamespace(
        tokens=np.array(tokens), parents=np.array(parents), drawn='iid', draft_probs=q, size=len(tokens))
    draft = types.SimpleNamespace(
        tree=tree, target_probs=p.copy(), raw_probs=np.array([R[one] for one in after[at]]),
        allowed=~np.isin(np.arange(3), []))
    path, token = theirs.verify(draft, int(random.integers(2**31)))
    out = [tokens[node] for node in path] + [int(token)]
    before, got = (0,), len((0,))
    out = [int(one) for one in out]
    while len(out) <= got:  # go on as the target does
        out.append(int(random.choice(3, p=P[tuple(out)])))
    if tuple(out[:got]) == before:
        count[out[got]] += 1
print("next token after", before, "should have", [0.125, 0.625, 0.25])
print("it has", [round(count[token] / max(1, count.total()), 4) for token in range(3)], "of", count.total())

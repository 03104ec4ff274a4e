"""vllm-project/vllm-ascend, its sampler in PyTorch with entropy verification, off by default: parts from the target's distribution: total variation 0.1576

Run: python vllm-ascend-entropy.py FOLDER   # of a clone of https://github.com/vllm-project/vllm-ascend at 182b75e
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
class Unpinned:

    def __getattr__(self, name):
        attribute = getattr(torch, name)
        if name not in ('tensor', 'arange', 'ones', 'zeros', 'empty', 'full'):
            return attribute
        return lambda *values, pin_memory=False, **options: attribute(*values, **options)
def ascend(folder, block=False, entropy=False):
    place = folder / 'vllm_ascend/sample/rejection_sampler.py'
    kinds = ('block_verify_pytorch', 'blockwise_pytorch') if block else ('pytorch', 'pytorch')
    names = (f'rejection_random_sample_{kinds[0]}', f'sample_recovered_tokens_{kinds[1]}')
    decide, recover = (load(place, name, PLACEHOLDER_TOKEN_ID=-1, torch=Unpinned()) for name in names)
    short = ascend(folder) if block else None

    def kernel(draft_token_ids, num_draft_tokens, max_spec_len, cu_num_draft_tokens, draft_probs, target_probs, bonus_token_ids, uniform_probs, exponential_noise):
        if short is not None and max_spec_len < 3:
            return short(draft_token_ids, num_draft_tokens, max_spec_len, cu_num_draft_tokens, draft_probs, target_probs, bonus_token_ids, uniform_probs, exponential_noise)
        ids, ends = (torch.from_numpy(draft_token_ids).long(), torch.from_numpy(cu_num_draft_tokens).long())
        drafted, target = (torch.from_numpy(draft_probs), torch.from_numpy(target_probs))
        recovered = torch.empty(len(ids), dtype=torch.int64)
        recover(recovered, ends, ids, drafted, target, torch.from_numpy(exponential_noise), target.shape[1])
        output_token_ids = torch.full((len(ends), max_spec_len + 1), -1, dtype=torch.int64)
        decide(output_token_ids, ends, ids, drafted, target, torch.from_numpy(bonus_token_ids).long().view(-1), recovered, torch.from_numpy(uniform_probs).float(), torch.zeros(len(ends), dtype=torch.bool), max_spec_len, target.shape[1], ENTROPY_VERIFY=entropy)
        return output_token_ids.numpy()
    return kernel
scripted_noise = lambda *_: contextlib.nullcontext()  # theirs
theirs = SimpleNamespace(verify=ascend(Path(sys.argv[1]), entropy=True))
P = {(): np.array([0.5, 0.5]), (0,): np.array([0.5, 0.5]), (1,): np.array([0.5, 0.5])}  # target's distribution after these tokens
Q = {(): np.array([0.0, 1.0]), (0,): np.array([0.0, 1.0]), (1,): np.array([0.0, 1.0])}  # drafter's
parents, drafts = [-1, 0], [(1.0, (0, 1))]  # (probability, tokens): what the drafter draws, node 0 is the root
after = [[(), (1,)]]  # tokens of the path to each node of each draft
random, count = np.random.default_rng(0), collections.Counter()
for _ in range(20000):
    at = random.choice(len(drafts), p=[one[0] for one in drafts])
    tokens, p, q = drafts[at][1], np.array([P[one] for one in after[at]]), np.array([Q[one] for one in after[at]])
    n = len(p) - 1
    out = theirs.verify(
        draft_token_ids=np.array(tokens[1:], "i4"), num_draft_tokens=[n], max_spec_len=n,
        cu_num_draft_tokens=np.array([n], "i4"), draft_probs=q[:-1].astype("f4"), target_probs=p[:-1].astype("f4"),
        bonus_token_ids=np.array([[random.choice(p.shape[1], p=p[-1])]], "i4"), uniform_probs=random.random(n),
        exponential_noise=random.standard_exponential((1, p.shape[1])).astype("f4"))[0]
    out = [int(token) for token in out if token >= 0]
    before, got = (), len(())
    out = [int(one) for one in out]
    while len(out) <= got:  # go on as the target does
        out.append(int(random.choice(2, p=P[tuple(out)])))
    if tuple(out[:got]) == before:
        count[out[got]] += 1
print("next token after", before, "should have", [0.5, 0.5])
print("it has", [round(count[token] / max(1, count.total()), 4) for token in range(2)], "of", count.total())

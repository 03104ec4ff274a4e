"""Write a failing case as a script for a bug report; it needs only NumPy and the verifier."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from underpaint.artifacts.origin import SCRIPT_MARK
from underpaint.sim.certify.case import VerifierCase, contexts
from underpaint.sim.certify.measurement import Measurement
from underpaint.sim.certify.sessions import SessionModels

MOST_ROWS = 64
"""Largest number of contexts whose distributions a script contains."""
_SUMMARY = f'"""{{summary}} {SCRIPT_MARK}"""\n'
HEAD = f"""{_SUMMARY}import collections, importlib.util, types
import numpy as np
spec = importlib.util.spec_from_file_location("theirs", {{path!r}})
theirs = importlib.util.module_from_spec(spec); spec.loader.exec_module(theirs)
"""
HEAD_OF_MODULE = f"""{_SUMMARY}import collections, types
import numpy as np
import {{module}} as theirs
"""
SETTINGS = "import functools; theirs.{name} = functools.partial(theirs.{name}, **{settings})\n"
OWN_NOISE = ("eagle", "tensorrt-llm", "transformers")
"""The layouts whose code draws its own noise; others are handed theirs."""
NOISE = """import random as python, sys
tests, draws = iter({tests}), iter({draws})  # the noise at which it fails, in place of random numbers
def uniforms(size=None):
    return next(tests) if size is None else np.array([next(tests) for _ in range(int(np.prod(size)))]).reshape(size)
def draw(weights):
    cumulated = np.cumsum(weights, dtype="f8")
    return min(int(cumulated.searchsorted(next(draws) * cumulated[-1], "right")), int(np.flatnonzero(weights)[-1]))
def choice(a, size=None, replace=True, p=None):
    values = np.arange(a) if isinstance(a, int) else np.asarray(a)
    value = values[draw(np.ones(len(values)) if p is None else p)]
    return value if size is None else np.array([value])
python.random = np.random.random = uniforms
np.random.rand, np.random.choice = lambda *size: uniforms(size or None), choice
np.random.uniform = lambda low=0.0, high=1.0, size=None: low + (high - low) * uniforms(size)
if torch := sys.modules.get("torch"):
    def rand(*shape, size=None, dtype=None, **_):
        size = size or (shape[0] if shape and not isinstance(shape[0], int) else shape)
        return torch.tensor(uniforms(tuple(size)), dtype=dtype or torch.float32)
    def multinomial(input, *_, **__):
        rows = input.detach().double().cpu().numpy().reshape(-1, input.shape[-1])
        return torch.tensor([draw(row) for row in rows]).reshape((*input.shape[:-1], 1))
    def exponential(self, lambd=1.0, **_):
        return self.copy_(torch.tensor(np.maximum(-np.log1p(-uniforms(tuple(self.shape))) / lambd, 1e-38)))
    torch.rand, torch.multinomial, torch.Tensor.multinomial = rand, multinomial, multinomial
    torch.rand_like = lambda input, **options: rand(input.shape, **{{"dtype": input.dtype, **options}})
    torch.Tensor.uniform_ = lambda self, low=0.0, to=1.0, **_: self.copy_(low + (to - low) * rand(self.shape))
    torch.Tensor.exponential_ = exponential
"""
RANDOM = "random, count = np.random.default_rng({seed}), collections.Counter()\n"
DRAFTS = """P = {target}  # target's distribution after these tokens
Q = {draft}  # drafter's
R = {raw}  # the target's before logit processors
parents, drafts = {parents}, {drafts}  # (probability, tokens): what the drafter draws, node 0 is the root
after = {after}  # tokens of the path to each node of each draft
"""
ANY_DRAFT = "random.choice(len(drafts), p=[one[0] for one in drafts])"
LOOP = """for _ in range({times}):
    at = {at}
    tokens, p, q = drafts[at][1], np.array([P[one] for one in after[at]]), np.array([Q[one] for one in after[at]])
"""
CALLS = {
    "function": """    tree = types.SimpleNamespace(
        tokens=np.array(tokens), parents=np.array(parents), drawn={drawn!r}, draft_probs=q, size=len(tokens))
    draft = types.SimpleNamespace(
        tree=tree, target_probs=p.copy(), raw_probs=np.array([R[one] for one in after[at]]),
        allowed=~np.isin(np.arange({size}), {banned}))
    path, token = theirs.{name}(draft, {noise})
    out = [tokens[node] for node in path] + [int(token)]
""",
    "flashinfer": """    out = theirs.{name}(
        draft_probs=q[None, :-1].astype("f4"), draft_token_ids=np.array([tokens[1:]], "i4"),
        uniform_samples={tests}, target_probs=p[None].astype("f4"))[0]
    out = [int(token) for token in out if token >= 0]
""",
    "vllm": """    n = len(p) - 1
    out = theirs.{name}(
        draft_token_ids=np.array(tokens[1:], "i4"), num_draft_tokens=[n], max_spec_len=n,
        cu_num_draft_tokens=np.array([n], "i4"), draft_probs=q[:-1].astype("f4"), target_probs=p[:-1].astype("f4"),
        bonus_token_ids=np.array([[random.choice(p.shape[1], p=p[-1])]], "i4"), uniform_probs=random.random(n),
        exponential_noise=random.standard_exponential((1, p.shape[1]), "f4"))[0]
    out = [int(token) for token in out if token >= 0]
""",
    "vllm-block": """    n = len(p) - 1
    out = theirs.{name}(
        draft_token_ids=np.array(tokens[1:], "i4"), num_draft_tokens=[n], max_spec_len=n,
        cu_num_draft_tokens=np.array([n], "i4"), draft_probs=q[:-1].astype("f4"), target_probs=p.astype("f4"),
        uniform_probs=random.random(n),
        exponential_noise=random.standard_exponential((1, len(p), p.shape[1]), "f4"))[0]
    out = [int(token) for token in out if token >= 0]
""",
    "tensorrt-llm": """    out = theirs.{name}(
        draft_probs=q[:-1].astype("f4"), target_probs=p.astype("f4"), draft_tokens=list(tokens[1:]))
""",
    "transformers": """    with np.errstate(divide="ignore"):
        logits = [np.log(one)[None].astype("f4") for one in (q[:-1], p)]
    out = theirs.{name}(
        candidate_input_ids=np.array([tokens]), candidate_logits=logits[0],
        candidate_length=len(tokens) - 1, new_logits=logits[1])
    out = np.asarray(out[0]).reshape(-1)[: int(out[1]) + 1].tolist()
""",
    "eagle": """    paths, banned, p = {paths}, {banned}, np.array([R[one] for one in after[at]])
    with np.errstate(divide="ignore"):
        logits = np.log(p).astype("f4")[paths]
    def processor(_, scores):
        scores = scores.clone() if hasattr(scores, "clone") else scores.copy()
        scores[..., banned] = -np.inf
        return scores
    best, accepted, left = theirs.{name}(
        logits=logits, candidates=np.where(np.array(paths) < 0, -1, np.array(tokens)[paths]),
        retrieve_indices=np.array(paths), logits_processor=processor)
    left = np.asarray(left, "f8").reshape(-1)
    out = [tokens[node] for node in paths[int(best)][1 : int(accepted) + 1]]
    out.append(int({extra}))
""",
    "session": """    models = types.SimpleNamespace(
        length={length}, vocab_size={size}, target=lambda tokens: P[tuple(tokens)].copy(),
        draft=lambda tokens: Q[tuple(tokens)].copy())
    step, out = theirs.{name}(models), []
    for _ in range({cycles}):
        out += list(step(tuple(out), random.random({uniforms})))
""",
}
TAIL = """    before, got = {before}, len({before})
    out = [int(one) for one in out]
    while len(out) <= got:  # go on as the target does
        out.append(int(random.choice({size}, p={row})))
    if tuple(out[:got]) == before:
        count[out[got]] += 1
print("next token after", before, "should have", {wanted})
print("it has", [round(count[token] / max(1, count.total()), 4) for token in range({size})], "of", count.total())
"""


def check_scriptable(target: str, interface: str) -> None:
    """Raise ValueError if no script can call a verifier that is named and called like this."""
    place = target.rpartition(":")[0]
    if _call_kind(interface) not in CALLS or not place or place in ("gallery", "rule"):
        raise ValueError(
            f"--out: a script can call a Python function as {', '.join(CALLS)} alone, not {target!r} as {interface}; "
            "name a .json file"
        )


def _call_kind(interface: str) -> str:
    return "function" if interface == "seeded" else interface


def script(
    case: VerifierCase,
    measurement: Measurement,
    target: str,
    interface: str,
    cycles: int = 1,
    settings: Mapping[str, float] | None = None,
    times: int = 20_000,
) -> str:
    """Write a script that samples a verifier on a case and prints the wrong distribution, or that repeats a fault.

    Args:
        case: The failing case.
        measurement: The measurement of the verifier on the case.
        target: "file.py:function" or "module:function".
        interface: How the function is called.
        cycles: Consecutive cycles, for a session.
        settings: Keyword arguments of the function.
        times: Number of samples that the script draws.

    Raises:
        ValueError: The verifier is no Python function, the fault is a session's or has no noise, or the case is too
            large.
    """
    check_scriptable(target, interface)
    place, _, name = target.rpartition(":")
    call_kind = _call_kind(interface)
    is_fault = measurement.difference is None
    if is_fault and (call_kind == "session" or not measurement.fault_noise):
        what = "a session's fault" if call_kind == "session" else "a fault that only samples showed"
        raise ValueError(f"a script cannot repeat {what}")
    finding = (
        measurement.fault and measurement.fault.detail
        if is_fault
        else f"total variation {measurement.total_variation:.4g}"
    )
    summary = f"{target} parts from the target's distribution: {finding}".replace("\\", "\\\\").replace('"""', "'''")
    head = (
        HEAD.format(summary=summary, path=str(Path(place).resolve()))
        if place.endswith(".py")
        else HEAD_OF_MODULE.format(summary=summary, module=place)
    )
    if settings:
        head += SETTINGS.format(name=name, settings=dict(settings))
    before: Sequence[int] = () if measurement.difference is None else measurement.difference.before
    common: dict[str, Any] = {
        "name": name,
        **_noise(interface, list(measurement.fault_noise) if is_fault else None),
        "paths": _paths(case),
        "banned": list(case.banned),
        "drawn": case.drawn,
        "length": len(case.parents) - 1,
        "size": case.vocab_size,
        "cycles": cycles,
        "uniforms": 2 * (len(case.parents) - 1) + 1,
    }
    end = {
        "before": tuple(before),
        "size": case.vocab_size,
        "wanted": [round(float(one), 4) for one in case.target_row(tuple(before))],
        "row": "P[tuple(out)]",
    }
    call = CALLS[call_kind].format(**common)
    if call_kind == "session":
        rows = _tables(case, cycles * case.length)
        loop = f"for _ in range({times}):\n"
        return head + rows + RANDOM.format(seed=0) + loop + call + TAIL.format(**end)
    drafts = [(round(weight, 12), tuple(draft.tree.tokens.tolist())) for weight, draft in case.drafts]
    after = [[case.context(node, tokens) for node in range(len(tokens))] for _, tokens in drafts]
    total = sum(weight for weight, _ in drafts)
    drafts = [(weight / total, tokens) for weight, tokens in drafts]
    body = DRAFTS.format(
        target=_table(case, "target", case.length),
        draft=_table(case, "draft", case.length),
        raw=_table(replace(case, banned=()), "target", case.length) if case.banned else "P",
        parents=list(case.parents),
        drafts=drafts,
        after=after,
    )
    if is_fault:  # a single decision, with its noise, shows the fault
        noise = list(measurement.fault_noise)
        at = next(place for place, (_, tokens) in enumerate(drafts) if tokens == measurement.fault_tokens)
        if interface in OWN_NOISE:
            body += NOISE.format(tests=noise[1:-1], draws=noise[-1:])
        body += RANDOM.format(seed=int(noise[0]) if len(noise) == 1 else 0)
        return head + body + LOOP.format(times=1, at=at) + call + "    print(tokens, 'gives', out)\n"
    return head + body + RANDOM.format(seed=0) + LOOP.format(times=times, at=ANY_DRAFT) + call + TAIL.format(**end)


def _noise(interface: str, fault_noise: list[float] | None) -> dict[str, str]:
    """The noise that a call is handed, as code: random numbers, or those of a fault."""
    if fault_noise is None:
        seeded = "int(random.integers(2**31))"
        return {
            "noise": seeded if interface == "seeded" else "random.random(len(tokens) + 1)",
            "tests": 'random.random((1, len(tokens)), "f4")',
            "extra": "random.choice(len(left), p=left / left.sum())",
        }
    return {
        "noise": str(int(fault_noise[0])) if interface == "seeded" else f"np.array({fault_noise})",
        "tests": f'np.array([{fault_noise[1:]}], "f4")',
        "extra": f'np.cumsum(left).searchsorted({fault_noise[-1]} * left.sum(), "right")',
    }


def _paths(case: VerifierCase) -> list[list[int]]:
    tree = case.drafts[0].draft.tree
    paths = [[0, *tree.path_to(leaf)] for leaf in tree.leaves]
    longest = max(map(len, paths))
    return [path + [-1] * (longest - len(path)) for path in paths]


def _tables(case: VerifierCase, length: int) -> str:
    return f"P = {_table(case, 'target', length)}\nQ = {_table(case, 'draft', length)}\n"


def _table(case: VerifierCase, name: str, length: int) -> str:
    prefixes = contexts(case.vocab_size, length)
    if len(prefixes) > MOST_ROWS:
        raise ValueError(
            f"the smallest case has {len(prefixes)} distributions, a script holds {MOST_ROWS}; look longer with "
            "--shrink-seconds"
        )
    models = SessionModels(case)
    rows = models.target if name == "target" else models.draft
    listed = ", ".join(f"{one}: np.array({rows(one).tolist()})" for one in prefixes)
    return "{" + listed + "}"

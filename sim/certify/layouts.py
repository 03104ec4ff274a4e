"""Batches of tensors as production kernels take them, and what comes back, as decisions.

Arrays are NumPy's, probabilities and uniforms float32, whole numbers int32 or int64 as the kernels have them.
`torch.from_numpy` shares their memory, so a wrapper of two lines calls a kernel on the CPU; one on a GPU copies.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, Final

import numpy as np

from underpaint.algos.arrays import FloatArray
from underpaint.algos.tree import Verdict
from underpaint.sim.certify.case import DraftRequest
from underpaint.sim.certify.verifier import Fault, Noise, Verifier, VerifierStopped

Kernel = Callable[..., Any]


def linked(draft: DraftRequest) -> tuple[list[int], list[int]]:
    """For each node its first child and its next sibling; -1 where there is none."""
    children = draft.tree.children()
    first = [below[0] if below else -1 for below in children]
    following = [-1] * draft.tree.size
    for below in children:
        for one, other in pairwise(below):
            following[one] = other
    return first, following


@dataclass(frozen=True, slots=True)
class TreeLayout:
    """sglang-kernel's `tree_speculative_sampling_target_only`: linked lists of children, outputs written in place.

    kernel(predicts [B * N] int32, accept_index [B, N] int32, accept_token_num [B] int32, candidates [B, N] int64,
    retrive_index [B, N] int64, retrive_next_token [B, N] int64, retrive_next_sibling [B, N] int64, uniform_samples
    [B, N] float32, uniform_samples_for_final_sampling [B] float32, target_probs [B, N, V] float32, draft_probs
    [B, N, V] float32, zeros), by keyword. predicts and accept_index start as -1. The kernel's spelling of "retrieve" is
    kept. Point proposals alone: the kernel is told no draft distribution.
    """

    kernel: Kernel
    noise: Noise = field(default="uniforms", init=False)
    bits: int = field(default=24, init=False)

    def decide(self, drafts: Sequence[DraftRequest], noise: FloatArray) -> list[Verdict | Fault]:
        count, nodes, vocab_size = len(drafts), drafts[0].tree.size, drafts[0].target_probs.shape[1]
        lists = [linked(draft) for draft in drafts]
        predicts = np.full(count * nodes, -1, dtype=np.int32)
        accept_index = np.full((count, nodes), -1, dtype=np.int32)
        accept_token_num = np.zeros(count, dtype=np.int32)
        _called(
            self.kernel,
            predicts=predicts,
            accept_index=accept_index,
            accept_token_num=accept_token_num,
            candidates=np.stack([draft.tree.tokens for draft in drafts]),
            retrive_index=np.arange(count * nodes).reshape(count, nodes),
            retrive_next_token=np.array([first for first, _ in lists]),
            retrive_next_sibling=np.array([following for _, following in lists]),
            uniform_samples=noise[:, :nodes].astype(np.float32),
            uniform_samples_for_final_sampling=noise[:, nodes].astype(np.float32),
            target_probs=np.stack([draft.target_probs for draft in drafts]).astype(np.float32),
            draft_probs=np.zeros((count, nodes, vocab_size), dtype=np.float32),
        )
        return [
            self._read(
                place, nodes, draft, predicts.tolist(), accept_index[place].tolist(), int(accept_token_num[place])
            )
            for place, draft in enumerate(drafts)
        ]

    def _read(
        self, place: int, nodes: int, draft: DraftRequest, predicts: list[int], accept_index: list[int], accepted: int
    ) -> Verdict | Fault:
        if not 0 <= accepted < nodes:
            return Fault("bad path", f"accept_token_num is {accepted}, for a tree of {nodes - 1} drafted nodes")
        chosen = [one - place * nodes for one in accept_index[: accepted + 1]]
        if chosen[0] != 0:
            return Fault("bad path", f"accept_index begins with node {chosen[0]}, not with the root")
        if any(not 0 <= node < nodes for node in chosen):
            return Fault("bad path", f"accept_index names nodes {chosen} of a tree of {nodes}")
        told = [predicts[place * nodes + node] for node in chosen]
        held = [int(draft.tree.tokens[node]) for node in chosen[1:]]
        if told[:-1] != held:
            return Fault("bad reply", f"predicts holds {told[:-1]} on the path, the accepted nodes hold {held}")
        return Verdict(tuple(chosen[1:]), told[-1])

    def enumerate(self, draft: DraftRequest) -> dict[Verdict, float] | Fault:
        return _no_enumeration()


@dataclass(frozen=True, slots=True)
class ChainLayout:
    """FlashInfer's `chain_speculative_sampling`, in its form that takes uniforms.

    kernel(draft_probs [B, n, V] float32, draft_token_ids [B, n] int32, uniform_samples [B, n + 1] float32, target_probs
    [B, n + 1, V] float32) by keyword returns output_token_ids [B, n + 1], -1 after the extra token. Uniform i is for
    draft token i, the last one for the final draw.
    """

    kernel: Kernel
    noise: Noise = field(default="uniforms", init=False)
    bits: int = field(default=24, init=False)

    def decide(self, drafts: Sequence[DraftRequest], noise: FloatArray) -> list[Verdict | Fault]:
        _require_chains(drafts)
        returned = _called(
            self.kernel,
            draft_probs=np.stack([draft.tree.draft_probs[:-1] for draft in drafts]).astype(np.float32),
            draft_token_ids=np.stack([draft.tree.tokens[1:] for draft in drafts]).astype(np.int32),
            uniform_samples=noise[:, 1:].astype(np.float32),
            target_probs=np.stack([draft.target_probs for draft in drafts]).astype(np.float32),
        )
        return _read_chains(drafts, returned)

    def enumerate(self, draft: DraftRequest) -> dict[Verdict, float] | Fault:
        return _no_enumeration()


@dataclass(frozen=True, slots=True)
class FlatChainLayout:
    """vLLM's `rejection_sample`: requests' draft tokens one after another, bonus tokens drawn beforehand.

    kernel(draft_token_ids [B * n] int32, num_draft_tokens list of B, max_spec_len, cu_num_draft_tokens [B] int32,
    draft_probs [B * n, V] float32, target_probs [B * n, V] float32, bonus_token_ids [B, 1] int32, uniform_probs [B * n]
    float64, exponential_noise [B, V] float32) by keyword returns output_token_ids [B, n + 1], -1 after the extra token.
    The recovered token is the largest of residual / exponential_noise, a race of V draws, which has no quantiles in one
    uniform; so this layout is judged by samples, its noise made from seeds.
    """

    kernel: Kernel
    noise: Noise = field(default="seeds", init=False)
    bits: int = field(default=24, init=False)

    def decide(self, drafts: Sequence[DraftRequest], noise: FloatArray) -> list[Verdict | Fault]:
        _require_chains(drafts)
        count, length = len(drafts), drafts[0].tree.size - 1
        vocab_size = drafts[0].target_probs.shape[1]
        random = np.random.default_rng(noise[:, 0].astype(np.int64))
        cumulated = np.stack([draft.target_probs[-1] for draft in drafts]).cumsum(axis=1)
        bonus = (cumulated <= random.random((count, 1)) * cumulated[:, -1:]).sum(axis=1)
        returned = _called(
            self.kernel,
            draft_token_ids=np.concatenate([draft.tree.tokens[1:] for draft in drafts]).astype(np.int32),
            num_draft_tokens=[length] * count,
            max_spec_len=length,
            cu_num_draft_tokens=np.arange(1, count + 1, dtype=np.int32) * length,
            draft_probs=np.concatenate([draft.tree.draft_probs[:-1] for draft in drafts]).astype(np.float32),
            target_probs=np.concatenate([draft.target_probs[:-1] for draft in drafts]).astype(np.float32),
            bonus_token_ids=bonus[:, None].astype(np.int32),
            uniform_probs=random.random(count * length),
            # NumPy's float32 draws can be exactly 0, which torch's `exponential_` never gives.
            exponential_noise=np.maximum(
                random.standard_exponential((count, vocab_size), dtype=np.float32), np.finfo(np.float32).tiny
            ),
        )
        return _read_chains(drafts, returned)

    def enumerate(self, draft: DraftRequest) -> dict[Verdict, float] | Fault:
        return _no_enumeration()


LAYOUTS: Final[dict[str, Callable[[Kernel], Verifier]]] = {
    "tree": TreeLayout,
    "chain": ChainLayout,
    "vllm": FlatChainLayout,
}


def _called(kernel: Kernel, **arrays: Any) -> Any:
    try:
        return kernel(**arrays)
    except Exception as error:  # whatever a kernel raises is a finding
        raise VerifierStopped(Fault("crash", f"{type(error).__name__}: {error}")) from error


def _read_chains(drafts: Sequence[DraftRequest], returned: Any) -> list[Verdict | Fault]:
    length = drafts[0].tree.size - 1
    rows = np.asarray(returned)
    if rows.shape != (len(drafts), length + 1) or not np.issubdtype(rows.dtype, np.integer):
        fault = Fault(
            "bad reply",
            f"expected whole numbers [{len(drafts)}, {length + 1}], got {rows.dtype} {list(rows.shape)}",
        )
        return [fault] * len(drafts)
    return [_read_chain(draft, row.tolist()) for draft, row in zip(drafts, rows, strict=True)]


def _read_chain(draft: DraftRequest, row: list[int]) -> Verdict | Fault:
    """Tokens that equal the draft's are accepted; the first that does not, or the last, is the extra one.

    A residual may draw the drafted token itself, which only a following -1 tells from an acceptance.
    """
    count = row.index(-1) if -1 in row else len(row)
    if count == 0 or any(token != -1 for token in row[count:]):
        return Fault("bad reply", f"expected tokens and then -1 to the end, got {row}")
    held = draft.tree.tokens[1:count].tolist()
    if row[: count - 1] != held:
        return Fault("bad path", f"tokens {row[:count]} do not follow the draft {draft.tree.tokens[1:].tolist()}")
    return Verdict(tuple(range(1, count)), row[count - 1])


def _require_chains(drafts: Sequence[DraftRequest]) -> None:
    if any(int(above) != node for node, above in enumerate(drafts[0].tree.parents[1:])):
        raise ValueError("this layout holds chains; judge it on chains alone")


def _no_enumeration() -> Fault:
    raise ValueError("a layout takes uniforms, it records no decisions")

"""Call production kernels with arrays in their own layouts, and read their outputs as decisions.

All arrays are NumPy arrays: probabilities and uniforms are float32 (float64 with `--bits 53`), integers int32 or int64
as in the kernels. `torch.from_numpy` shares their memory, so a wrapper of two lines calls a kernel on the CPU. Code
that draws its own noise is called within `scripted_noise`, so that PyTorch's draws use the certificate's uniforms.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, Final, NamedTuple

import numpy as np

from underpaint.algos.arrays import FloatArray
from underpaint.algos.chance import index_of
from underpaint.algos.tree import DraftTree, Verdict
from underpaint.sim.certify.case import DraftRequest
from underpaint.sim.certify.noise import NoiseExhausted, scripted_noise
from underpaint.sim.certify.verifier import Fault, Noise, Verifier, VerifierStopped

Kernel = Callable[..., Any]


@dataclass(frozen=True, slots=True)
class KernelVerifier(Verifier):
    """A kernel that is called with arrays as keyword arguments."""

    kernel: Kernel
    bits: int = 24

    @property
    def dtype(self) -> Any:
        """The dtype of probabilities and uniforms."""
        return np.float64 if self.bits == 53 else np.float32

    def call(self, **arrays: Any) -> Any:
        """Call the kernel; any exception that it raises becomes a finding."""
        try:
            return self.kernel(**arrays)
        except NoiseExhausted as error:
            raise VerifierStopped(Fault("noise", str(error))) from error
        except Exception as error:
            raise VerifierStopped(Fault("crash", f"{type(error).__name__}: {error}")) from error


def linked(tree: DraftTree) -> tuple[list[int], list[int]]:
    """The first child and the next sibling of each node; -1 if there is none."""
    children = tree.children()
    following = [-1] * tree.size
    for below in children:
        for one, other in pairwise(below):
            following[one] = other
    return [below[0] if below else -1 for below in children], following


@dataclass(frozen=True, slots=True)
class TreeLayout(KernelVerifier):
    """The layout of sglang-kernel's `tree_speculative_sampling_target_only`: linked child lists, outputs in place.

    kernel(predicts [B * N] int32, accept_index [B, N] int32, accept_token_num [B] int32, candidates [B, N] int64,
    retrive_index [B, N] int64, retrive_next_token [B, N] int64, retrive_next_sibling [B, N] int64, uniform_samples
    [B, N], uniform_samples_for_final_sampling [B], target_probs [B, N, V], draft_probs [B, N, V], zeros). predicts and
    accept_index start as -1. The kernel's spelling of "retrieve" is kept. Only point proposals: draft_probs is all 0.
    """

    def decide(self, drafts: Sequence[DraftRequest], noise: FloatArray) -> list[Verdict | Fault]:
        count, nodes, vocab_size = len(drafts), drafts[0].tree.size, drafts[0].target_probs.shape[1]
        lists = [linked(draft.tree) for draft in drafts]
        predicts = np.full(count * nodes, -1, dtype=np.int32)
        accept_index = np.full((count, nodes), -1, dtype=np.int32)
        accept_token_num = np.zeros(count, dtype=np.int32)
        self.call(
            predicts=predicts,
            accept_index=accept_index,
            accept_token_num=accept_token_num,
            candidates=np.stack([draft.tree.tokens for draft in drafts]),
            retrive_index=np.arange(count * nodes).reshape(count, nodes),
            retrive_next_token=np.array([first for first, _ in lists]),
            retrive_next_sibling=np.array([following for _, following in lists]),
            uniform_samples=noise[:, :nodes].astype(self.dtype),
            uniform_samples_for_final_sampling=noise[:, nodes].astype(self.dtype),
            target_probs=np.stack([draft.target_probs for draft in drafts]).astype(self.dtype),
            draft_probs=np.zeros((count, nodes, vocab_size), dtype=self.dtype),
        )
        return [
            _read_tree(place, draft.tree, predicts.tolist(), accept_index[place].tolist(), int(accept_token_num[place]))
            for place, draft in enumerate(drafts)
        ]


def _read_tree(
    place: int, tree: DraftTree, predicts: list[int], accept_index: list[int], accepted: int
) -> Verdict | Fault:
    nodes = tree.size
    if not 0 <= accepted < nodes:
        return Fault("bad path", f"accept_token_num is {accepted}, for a tree of {nodes - 1} drafted nodes")
    chosen = [one - place * nodes for one in accept_index[: accepted + 1]]
    if chosen[0] != 0:
        return Fault("bad path", f"accept_index begins with node {chosen[0]}, not with the root")
    if any(not 0 <= node < nodes for node in chosen):
        return Fault("bad path", f"accept_index names nodes {chosen} of a tree of {nodes}")
    emitted = [predicts[place * nodes + node] for node in chosen]
    drafted = [int(tree.tokens[node]) for node in chosen[1:]]
    if emitted[:-1] != drafted:
        return Fault("bad reply", f"predicts holds {emitted[:-1]} on the path, the accepted nodes hold {drafted}")
    return Verdict(tuple(chosen[1:]), emitted[-1])


@dataclass(frozen=True, slots=True)
class ChainLayout(KernelVerifier):
    """The layout of FlashInfer's `chain_speculative_sampling`, in the version that takes uniforms.

    kernel(draft_probs [B, n, V], draft_token_ids [B, n] int32, uniform_samples [B, n + 1], target_probs [B, n + 1, V])
    returns output_token_ids [B, n + 1], -1 after the extra token. Uniform i tests draft token i; the last uniform is
    for the final draw.
    """

    def decide(self, drafts: Sequence[DraftRequest], noise: FloatArray) -> list[Verdict | Fault]:
        _require_chains(drafts)
        returned = self.call(
            draft_probs=np.stack([draft.tree.draft_probs[:-1] for draft in drafts]).astype(self.dtype),
            draft_token_ids=np.stack([draft.tree.tokens[1:] for draft in drafts]).astype(np.int32),
            uniform_samples=noise[:, 1:].astype(self.dtype),
            target_probs=np.stack([draft.target_probs for draft in drafts]).astype(self.dtype),
        )
        return read_chains(drafts, returned)


@dataclass(frozen=True, slots=True)
class FlatChainLayout(KernelVerifier):
    """The layout of vLLM's `rejection_sample`: draft tokens of all requests in one array, bonus tokens drawn before.

    kernel(draft_token_ids [B * n] int32, num_draft_tokens list of B, max_spec_len, cu_num_draft_tokens [B] int32,
    draft_probs [B * n, V], target_probs [B * n, V], bonus_token_ids [B, 1] int32, uniform_probs [B * n] float64,
    exponential_noise [B, V]) returns output_token_ids [B, n + 1], -1 after the extra token. The recovered token
    maximises residual / exponential_noise over V draws, so it has no thresholds in a single uniform. Therefore this
    layout is tested by samples, with noise from seeds.

    Attributes:
        kernel: The function that is called.
        bits: Its uniforms are integer multiples of 2 ** -bits.
        noise: Always "seeds".
        with_bonus: For vLLM's second model runner and its block verification, which draw the bonus token themselves.
            Then target_probs is [B * (n + 1), V], where the last row of a request follows its last draft token; there
            are no bonus_token_ids; and exponential_noise is [B, n + 1, V].
    """

    noise: Noise = field(default="seeds", init=False)
    with_bonus: bool = False

    def decide(self, drafts: Sequence[DraftRequest], noise: FloatArray) -> list[Verdict | Fault]:
        _require_chains(drafts)
        count, length = len(drafts), drafts[0].tree.size - 1
        vocab_size = drafts[0].target_probs.shape[1]
        # A seed gives the same noise in any batch, so that a request alone repeats its fault.
        generators = [np.random.default_rng(int(seed)) for seed in noise[:, 0]]
        last = None if self.with_bonus else -1
        races = (length + 1, vocab_size) if self.with_bonus else (vocab_size,)
        more: dict[str, Any] = {}
        if not self.with_bonus:
            cumulated = np.stack([draft.target_probs[-1] for draft in drafts]).cumsum(axis=1)
            bonus_noise = np.array([[random.random()] for random in generators])
            bonus = (cumulated <= bonus_noise * cumulated[:, -1:]).sum(axis=1)
            more["bonus_token_ids"] = bonus[:, None].astype(np.int32)
        returned = self.call(
            draft_token_ids=np.concatenate([draft.tree.tokens[1:] for draft in drafts]).astype(np.int32),
            num_draft_tokens=[length] * count,
            max_spec_len=length,
            cu_num_draft_tokens=np.arange(1, count + 1, dtype=np.int32) * length,
            draft_probs=np.concatenate([draft.tree.draft_probs[:-1] for draft in drafts]).astype(self.dtype),
            target_probs=np.concatenate([draft.target_probs[:last] for draft in drafts]).astype(self.dtype),
            uniform_probs=np.concatenate([random.random(length) for random in generators]),
            # NumPy's float32 draws can be exactly 0; those of torch's `exponential_` cannot.
            exponential_noise=np.maximum(
                np.stack([random.standard_exponential(races, dtype=np.float32) for random in generators]),
                np.finfo(np.float32).tiny,
            ).astype(self.dtype),
            **more,
        )
        return read_chains(drafts, returned)


@dataclass(frozen=True, slots=True)
class EagleLayout(KernelVerifier):
    """The layout of EAGLE's `evaluate_posterior`: the tree as root-to-leaf paths, uniforms from `random.random`.

    kernel(logits [P, D, V], candidates [P, D] int64, retrieve_indices [P, D] int64, logits_processor) for one request
    returns (best_candidate, accept_length, sample_p [V]). P paths of up to D nodes start with the root; candidates and
    retrieve_indices hold -1 after the end of a path. logits are the target's log probabilities before its logit
    processors; logits_processor(input_ids, scores) applies them. This class draws the extra token from sample_p.
    """

    def decide(self, drafts: Sequence[DraftRequest], noise: FloatArray) -> list[Verdict | Fault]:
        return [self._one(draft, row) for draft, row in zip(drafts, noise, strict=True)]

    def _one(self, draft: DraftRequest, noise: FloatArray) -> Verdict | Fault:
        tree = draft.tree
        paths = [[0, *tree.path_to(leaf)] for leaf in tree.leaves]
        longest = max(map(len, paths))
        retrieve = np.array([path + [-1] * (longest - len(path)) for path in paths])
        with np.errstate(divide="ignore"):
            logits = np.log(draft.raw_probs).astype(self.dtype)
        banned = np.flatnonzero(~draft.allowed)

        def logits_processor(input_ids: Any, scores: Any) -> Any:
            scores = scores.clone() if hasattr(scores, "clone") else scores.copy()
            scores[..., banned] = -np.inf
            return scores

        with scripted_noise(noise[1:-1], noise[-1:]):
            returned = self.call(
                logits=logits[retrieve],
                candidates=np.where(retrieve < 0, -1, tree.tokens[retrieve]),
                retrieve_indices=retrieve,
                logits_processor=logits_processor,
            )
        try:
            best, accepted, sample_p = returned
            path = paths[int(best)]
            row = np.asarray(sample_p, dtype=np.float64).reshape(-1)
            token = index_of(row, float(noise[-1]))
        except (TypeError, ValueError, IndexError) as error:
            return Fault("bad reply", f"expected (best_candidate, accept_length, sample_p), got {error}")
        if not 0 <= int(accepted) < longest:
            return Fault("bad path", f"accept_length {int(accepted)}: the longest path has {longest - 1} drafted nodes")
        if int(accepted) >= len(path):
            return Fault("bad path", f"accept_length {int(accepted)}: path {path} ends before, the rest is padding")
        return Verdict(tuple(path[1 : int(accepted) + 1]), token)


@dataclass(frozen=True, slots=True)
class TensorRTLayout(KernelVerifier):
    """The layout of TensorRT-LLM's PyTorch rejection sampling: one request, noise from `torch.rand`, `multinomial`.

    kernel(draft_probs [n, V], target_probs [n + 1, V], draft_tokens list of n) returns the emitted tokens, 1 to n + 1.
    """

    def decide(self, drafts: Sequence[DraftRequest], noise: FloatArray) -> list[Verdict | Fault]:
        _require_chains(drafts)
        return [self._one(draft, row) for draft, row in zip(drafts, noise, strict=True)]

    def _one(self, draft: DraftRequest, noise: FloatArray) -> Verdict | Fault:
        with scripted_noise(noise[1:-1], noise[-1:]):
            returned = self.call(
                draft_probs=draft.tree.draft_probs[:-1].astype(self.dtype),
                target_probs=draft.target_probs.astype(self.dtype),
                draft_tokens=draft.tree.tokens[1:].tolist(),
            )
        return read_chain(draft, [int(token) for token in returned])


@dataclass(frozen=True, slots=True)
class TransformersLayout(KernelVerifier):
    """The layout of transformers' `_speculative_sampling`: one request; noise from `torch.rand_like`, `multinomial`.

    kernel(candidate_input_ids [1, n + 1] int64, candidate_logits [1, n, V], candidate_length, new_logits [1, n + 1, V])
    returns (valid_tokens [1, k + 1], n_matches k).
    """

    def decide(self, drafts: Sequence[DraftRequest], noise: FloatArray) -> list[Verdict | Fault]:
        _require_chains(drafts)
        return [self._one(draft, row) for draft, row in zip(drafts, noise, strict=True)]

    def _one(self, draft: DraftRequest, noise: FloatArray) -> Verdict | Fault:
        tree = draft.tree
        with np.errstate(divide="ignore"):
            rows = [np.log(one).astype(self.dtype)[None] for one in (tree.draft_probs[:-1], draft.target_probs)]
        with scripted_noise(noise[1:-1], noise[-1:]):
            returned = self.call(
                candidate_input_ids=tree.tokens[None].copy(),
                candidate_logits=rows[0],
                candidate_length=tree.size - 1,
                new_logits=rows[1],
            )
        try:
            tokens, matches = returned
            return read_chain(draft, np.asarray(tokens).reshape(-1)[: int(matches) + 1].tolist())
        except (TypeError, ValueError) as error:
            return Fault("bad reply", f"expected (valid_tokens, n_matches), got {error}")


def _with_bonus(kernel: Kernel, bits: int = 24) -> Verifier:
    return FlatChainLayout(kernel, bits, with_bonus=True)


class KernelLayout(NamedTuple):
    """A layout of kernel arrays.

    Attributes:
        open: Makes the verifier from the kernel and the number of bits.
        chain: Whether it supports only chains.
        batched: Whether a call holds several drafts.
    """

    open: Callable[..., Verifier]
    chain: bool
    batched: bool


LAYOUTS: Final[dict[str, KernelLayout]] = {
    "eagle": KernelLayout(EagleLayout, chain=False, batched=False),
    "sglang": KernelLayout(TreeLayout, chain=False, batched=True),
    "flashinfer": KernelLayout(ChainLayout, chain=True, batched=True),
    "vllm": KernelLayout(FlatChainLayout, chain=True, batched=True),
    "vllm-block": KernelLayout(_with_bonus, chain=True, batched=True),
    "tensorrt-llm": KernelLayout(TensorRTLayout, chain=True, batched=False),
    "transformers": KernelLayout(TransformersLayout, chain=True, batched=False),
}


def read_chains(drafts: Sequence[DraftRequest], returned: Any) -> list[Verdict | Fault]:
    """Read rows [B, n + 1] of emitted tokens as decisions."""
    length = drafts[0].tree.size - 1
    rows = np.asarray(returned)
    if rows.shape != (len(drafts), length + 1) or not np.issubdtype(rows.dtype, np.integer):
        fault = Fault(
            "bad reply",
            f"expected whole numbers [{len(drafts)}, {length + 1}], got {rows.dtype} {list(rows.shape)}",
        )
        return [fault] * len(drafts)
    return [read_chain(draft, row.tolist()) for draft, row in zip(drafts, rows, strict=True)]


def read_chain(draft: DraftRequest, row: list[int]) -> Verdict | Fault:
    """Read a row of emitted tokens as a decision: the last token before -1 or the end is the extra one.

    All tokens before it must equal the draft's. It may equal its draft token too, since a residual can contain that.
    """
    count = row.index(-1) if -1 in row else len(row)
    if not 1 <= count <= draft.tree.size or any(token != -1 for token in row[count:]):
        return Fault("bad reply", f"expected 1 to {draft.tree.size} tokens and then -1 to the end, got {row}")
    drafted = draft.tree.tokens[1:count].tolist()
    if row[: count - 1] != drafted:
        return Fault("bad path", f"tokens {row[:count]} do not follow the draft {draft.tree.tokens[1:].tolist()}")
    return Verdict(tuple(range(1, count)), row[count - 1])


def _require_chains(drafts: Sequence[DraftRequest]) -> None:
    if any(int(above) != node for node, above in enumerate(drafts[0].tree.parents[1:])):
        raise ValueError("this layout holds chains; judge it on chains alone")

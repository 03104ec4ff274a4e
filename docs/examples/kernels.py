"""Public samplers written anew in their style, for `underpaint certify --as sglang`, `flashinfer` and `vllm`.

They show what each layout holds. Below them stand copies with mistakes, some of which were reported of public code.
"""

from functools import partial

import numpy as np

from underpaint.algos.arrays import FloatArray, IntArray
from underpaint.algos.chance import index_of


def tree_target_only(
    predicts: IntArray,
    accept_index: IntArray,
    accept_token_num: IntArray,
    candidates: IntArray,
    retrive_index: IntArray,
    retrive_next_token: IntArray,
    retrive_next_sibling: IntArray,
    uniform_samples: FloatArray,
    uniform_samples_for_final_sampling: FloatArray,
    target_probs: FloatArray,
    draft_probs: FloatArray,
    *,
    at_zero: bool = False,
    mass_kept: bool = False,
    own_mass_left: bool = False,
    shifted: int = 0,
) -> None:
    """Siblings share their parent's uniform: a child is accepted where it falls on the child's target mass.

    In the style of SGLang's target-only tree sampler (see `TreeLayout` for the arrays). Mistakes: at_zero accepts a
    token of probability 0 at a uniform of 0; mass_kept goes on with the siblings' mass below an accepted node;
    own_mass_left leaves rejected tokens in the final draw; shifted judges by another node's row.
    """
    count, nodes = candidates.shape
    for one in range(count):
        node = 0
        accept_index[one, 0] = retrive_index[one, 0]
        mass = np.float32(0.0)
        while True:
            row = target_probs[one, (node + shifted) % nodes]
            uniform = uniform_samples[one, node]
            child = int(retrive_next_token[one, node])
            rejected: list[int] = []
            while child != -1:
                token = int(candidates[one, child])
                mass += row[token]
                if uniform < mass or (at_zero and uniform == mass):
                    break
                rejected.append(token)
                child = int(retrive_next_sibling[one, child])
            if child == -1:
                break
            predicts[retrive_index[one, node]] = candidates[one, child]
            accept_token_num[one] += 1
            accept_index[one, accept_token_num[one]] = retrive_index[one, child]
            node = child
            if not mass_kept:
                mass = np.float32(0.0)
        weights = target_probs[one, node].copy()
        if not own_mass_left:
            weights[rejected] = 0.0
        predicts[retrive_index[one, node]] = index_of(weights, float(uniform_samples_for_final_sampling[one]))


def chain_rejection(
    draft_probs: FloatArray,
    draft_token_ids: IntArray,
    uniform_samples: FloatArray,
    target_probs: FloatArray,
    *,
    shifted: int = 0,
    no_residual: bool = False,
) -> IntArray:
    """Speculative sampling of a batch of chains, the extra token by inverse CDF (see `ChainLayout` for the arrays).

    Mistakes: shifted judges by another position's row; no_residual draws from the target after a rejection.
    """
    count, length, _ = draft_probs.shape
    output = np.full((count, length + 1), -1, dtype=np.int64)
    for one in range(count):
        place = 0
        while place < length:
            token = int(draft_token_ids[one, place])
            target, drafted = target_probs[one, min(place + shifted, length)], draft_probs[one, place]
            if not uniform_samples[one, place] * drafted[token] < target[token]:
                break
            output[one, place] = token
            place += 1
        weights = target_probs[one, place]
        if place < length and not no_residual:
            rest = np.maximum(weights - draft_probs[one, place], 0.0)
            weights = rest if rest.any() else weights
        output[one, place] = index_of(weights, float(uniform_samples[one, length]))
    return output


def flat_chain_rejection(
    draft_token_ids: IntArray,
    num_draft_tokens: list[int],
    max_spec_len: int,
    cu_num_draft_tokens: IntArray,
    draft_probs: FloatArray,
    target_probs: FloatArray,
    bonus_token_ids: IntArray,
    uniform_probs: FloatArray,
    exponential_noise: FloatArray,
    *,
    recovered_from_target: bool = False,
    capped: bool = False,
) -> IntArray:
    """Speculative sampling in vLLM's layout: recovered tokens by a race of exponentials (see `FlatChainLayout`).

    Mistakes: recovered_from_target races by the target instead of the residual; capped cuts the ratio to 0 or 1.
    """
    output = np.full((len(num_draft_tokens), max_spec_len + 1), -1, dtype=np.int64)
    start = 0
    for request, stop in enumerate(cu_num_draft_tokens.tolist()):
        for place, row in enumerate(range(start, stop)):
            token = int(draft_token_ids[row])
            ratio = float(target_probs[row, token]) / float(draft_probs[row, token])
            if uniform_probs[row] < (float(ratio >= 1.0) if capped else ratio):
                output[request, place] = token
                continue
            rest = np.maximum(target_probs[row] - draft_probs[row], 0.0)
            weights = target_probs[row] if recovered_from_target or not rest.any() else rest
            output[request, place] = int(np.argmax(weights / exponential_noise[request]))
            break
        else:
            output[request, stop - start] = bonus_token_ids[request, 0]
        start = stop
    return output


tree_at_zero = partial(tree_target_only, at_zero=True)
"""Accepts a token of probability 0 (SGLang #35771)."""
tree_mass_kept = partial(tree_target_only, mass_kept=True)
tree_rejected_drawn = partial(tree_target_only, own_mass_left=True)
tree_wrong_slice = partial(tree_target_only, shifted=1)
"""Judges by the next node's row (TensorRT-LLM #15098)."""
chain_wrong_slice = partial(chain_rejection, shifted=1)
chain_no_residual = partial(chain_rejection, no_residual=True)
flat_chain_capped = partial(flat_chain_rejection, capped=True)
"""Cuts the accept ratio to 0 or 1 (vLLM #13196)."""
flat_chain_from_target = partial(flat_chain_rejection, recovered_from_target=True)

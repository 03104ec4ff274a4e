"""Adapters of public verifiers in vLLM's layout."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from benchmarks.certificates.sources import PublicVerifier, load

LEAST_BLOCK = 3
"""vllm-ascend verifies by blocks from three drafted tokens on."""


def _ascend(block: bool = False, entropy: bool = False) -> Callable[[Path], Callable[..., Any]]:
    """vllm-ascend's sampler in PyTorch: recovered tokens first, then the tests."""

    def build(folder: Path) -> Callable[..., Any]:
        kinds = ("rejection_random_sample", "sample_recovered_tokens")
        names = [f"{kinds[0]}_pytorch", f"{kinds[1]}_pytorch", f"{kinds[0]}_block_verify_pytorch"]
        names.append(f"{kinds[1]}_blockwise_pytorch")
        parts = load(folder / "vllm_ascend/sample/rejection_sampler.py", names, PLACEHOLDER_TOKEN_ID=-1)

        def kernel(
            draft_token_ids: Any, num_draft_tokens: Any, max_spec_len: int, cu_num_draft_tokens: Any, draft_probs: Any,
            target_probs: Any, bonus_token_ids: Any, uniform_probs: Any, exponential_noise: Any,
        ) -> Any:  # fmt: skip
            ids, ends, drafted, target = map(
                torch.from_numpy, (draft_token_ids, cu_num_draft_tokens, draft_probs, target_probs)
            )
            ids, ends, count, size = ids.long(), ends.long(), len(num_draft_tokens), target.shape[1]
            blockwise = block and max_spec_len >= LEAST_BLOCK
            recover, decide = (names[3], names[2]) if blockwise else (names[1], names[0])
            recovered = torch.empty(len(ids), dtype=torch.int64)
            parts[recover](recovered, ends, ids, drafted, target, torch.from_numpy(exponential_noise), size)
            found = torch.full((count, max_spec_len + 1), -1, dtype=torch.int64)
            bonus = torch.from_numpy(bonus_token_ids).long().view(-1)
            noise = torch.from_numpy(uniform_probs).float()
            greedy = torch.zeros(count, dtype=torch.bool)
            parts[decide](
                found, ends, ids, drafted, target, bonus, recovered, noise, greedy, max_spec_len, size,
                ENTROPY_VERIFY=entropy,
            )  # fmt: skip
            return found.numpy()

        return kernel

    return build


ENTROPY = "accepts more at high entropy"
FLAT: tuple[PublicVerifier, ...] = (
    PublicVerifier(
        "vllm-ascend-block",
        "vllm-project/vllm-ascend",
        "block verification in PyTorch, off by default, from three drafted tokens on",
        _ascend(block=True),
        "vllm",
        "iid",
        count=16,
    ),
    PublicVerifier(
        "vllm-ascend", "vllm-project/vllm-ascend", "its sampler in PyTorch", _ascend(), "vllm", "iid", count=10
    ),
    PublicVerifier(
        "vllm-ascend-entropy",
        "vllm-project/vllm-ascend",
        "its sampler in PyTorch with entropy verification, off by default",
        _ascend(entropy=True),
        "vllm",
        "iid",
        relaxed=ENTROPY,
        count=10,
    ),
)

"""Adapters of public verifiers that take a batch of chains: kernels, and what stands for them on a CPU."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch

from benchmarks.certificates.sources import Unpinned, Verify, load, load_kernels, load_module


def emitted(tokens: Any, accepted: Any, extra: Any) -> Any:
    """Return [B, n + 1]: the accepted tokens, the extra token, and -1 to the end."""
    accepted = np.asarray(accepted)
    at = np.arange(tokens.shape[1] + 1)
    padded = np.concatenate([tokens, np.zeros((len(tokens), 1), dtype=np.int64)], axis=1)
    out = np.where(at < accepted[:, None], padded, -1)
    out[np.arange(len(out)), accepted] = np.asarray(extra)
    return out


def device_functions() -> Any:
    """Return functions of the device's library that kernels need and the interpreter lacks."""
    import triton.language as tl

    return SimpleNamespace(log1p=lambda one: tl.log(1.0 + one))


def ascend(folder: Path, block: bool = False, entropy: bool = False) -> Verify:
    """Adapter of vllm-ascend's PyTorch sampler: it draws the recovered tokens first, and then tests the drafts."""
    place = folder / "vllm_ascend/sample/rejection_sampler.py"
    kinds = ("block_verify_pytorch", "blockwise_pytorch") if block else ("pytorch", "pytorch")
    names = f"rejection_random_sample_{kinds[0]}", f"sample_recovered_tokens_{kinds[1]}"
    decide, recover = (load(place, name, PLACEHOLDER_TOKEN_ID=-1, torch=Unpinned()) for name in names)
    short = ascend(folder) if block else None

    def kernel(
        draft_token_ids: Any, num_draft_tokens: Any, max_spec_len: int, cu_num_draft_tokens: Any, draft_probs: Any,
        target_probs: Any, bonus_token_ids: Any, uniform_probs: Any, exponential_noise: Any,
    ) -> Any:  # fmt: skip
        if short is not None and max_spec_len < 3:  # its blocks need three drafted tokens or more
            return short(
                draft_token_ids, num_draft_tokens, max_spec_len, cu_num_draft_tokens, draft_probs, target_probs,
                bonus_token_ids, uniform_probs, exponential_noise,
            )  # fmt: skip
        ids, ends = torch.from_numpy(draft_token_ids).long(), torch.from_numpy(cu_num_draft_tokens).long()
        drafted, target = torch.from_numpy(draft_probs), torch.from_numpy(target_probs)
        recovered = torch.empty(len(ids), dtype=torch.int64)
        recover(recovered, ends, ids, drafted, target, torch.from_numpy(exponential_noise), target.shape[1])
        output_token_ids = torch.full((len(ends), max_spec_len + 1), -1, dtype=torch.int64)
        decide(
            output_token_ids, ends, ids, drafted, target, torch.from_numpy(bonus_token_ids).long().view(-1), recovered,
            torch.from_numpy(uniform_probs).float(), torch.zeros(len(ends), dtype=torch.bool), max_spec_len,
            target.shape[1], ENTROPY_VERIFY=entropy,
        )  # fmt: skip
        return output_token_ids.numpy()

    return kernel


def vllm_v1(folder: Path) -> Verify:
    """Adapter of the Triton kernels in vLLM's first model runner, run by the interpreter."""
    names = "rejection_random_sample_kernel", "sample_recovered_tokens_kernel"
    kernels = load_kernels(folder / "vllm/v1/sample/rejection_sampler.py", *names)

    def kernel(
        draft_token_ids: Any, num_draft_tokens: Any, max_spec_len: int, cu_num_draft_tokens: Any, draft_probs: Any,
        target_probs: Any, bonus_token_ids: Any, uniform_probs: Any, exponential_noise: Any,
    ) -> Any:  # fmt: skip
        ids, ends, drafted, target, bonus, noise = map(
            torch.from_numpy,
            (draft_token_ids, cu_num_draft_tokens, draft_probs, target_probs, bonus_token_ids, uniform_probs),
        )
        count, size, recovered = len(ends), target.shape[1], torch.empty_like(ids)
        kernels.sample_recovered_tokens_kernel[(count, max_spec_len)](
            recovered, ends, ids, drafted, target, torch.from_numpy(1.0 / exponential_noise), size,
            BLOCK_SIZE=8192, NO_DRAFT_PROBS=False, USE_FP64_GUMBEL=False,
        )  # fmt: skip
        output_token_ids = torch.full((count, max_spec_len + 1), -1, dtype=torch.int32)
        kernels.rejection_random_sample_kernel[(count,)](
            output_token_ids, ends, ids, drafted, target, bonus, recovered, noise, torch.zeros(count, dtype=torch.bool),
            max_spec_len, size, None, NO_DRAFT_PROBS=False, SYNTHETIC_MODE=False,
        )  # fmt: skip
        return output_token_ids.numpy()

    return kernel


def vllm_v2(folder: Path, block: bool = False) -> Verify:
    """Adapter of `rejection_sample` in vLLM's second model runner, run by the interpreter; its noise is seeded."""
    import triton
    import triton.language as tl

    utils = load_module(
        folder, "vllm.v1.worker.gpu.spec_decode.rejection_sampler_utils",
        vllm__triton_utils={"triton": triton, "tl": tl, "tldevice": device_functions()},
        vllm__v1__spec_decode__fly={"compute_fly_entropy": None},
        vllm__v1__worker__gpu__sample__watermark={"philox_gumbel_block_argmax": None},
    )  # fmt: skip

    def kernel(draft_token_ids: Any, max_spec_len: int, draft_probs: Any, target_probs: Any, uniform_probs: Any,
               **_: Any) -> Any:  # fmt: skip
        count, length = len(draft_token_ids) // max_spec_len, max_spec_len + 1
        drafted = torch.from_numpy(draft_probs).log().view(count, max_spec_len, -1)
        tokens = torch.from_numpy(draft_token_ids).long().view(count, max_spec_len)
        rows, at = torch.arange(count), torch.arange(length).repeat(count)
        token_ids, num_sampled = utils.rejection_sample(
            torch.from_numpy(target_probs).log(), drafted, torch.nn.functional.pad(tokens, (1, 0)).reshape(-1),
            torch.arange(count + 1, dtype=torch.int32) * length, at, rows, rows.repeat_interleave(length), at.int(),
            torch.ones(count), torch.from_numpy((uniform_probs[::max_spec_len] * 2**62).astype(np.int64)),
            max_spec_len, use_block_verification=block,
        )  # fmt: skip
        return np.where(np.arange(length) < num_sampled.numpy()[:, None], token_ids.numpy(), -1)

    return kernel


def sglang_chain(folder: Path, block: bool = False) -> Verify:
    """Adapter of SGLang's Triton sampler of chains, run by the interpreter."""
    kernels = load_module(folder, "sglang.kernels.ops.speculative.reject_sampling")

    def kernel(draft_probs: Any, draft_token_ids: Any, uniform_samples: Any, target_probs: Any) -> Any:
        count, length = draft_token_ids.shape
        predicts, index = (
            torch.zeros(count * (length + 1), dtype=torch.int64),
            torch.arange(count * (length + 1)).view(count, -1),
        )
        accepted = torch.zeros(count, dtype=torch.int32)
        ids = torch.nn.functional.pad(torch.from_numpy(draft_token_ids).long(), (1, 0))
        noise = torch.from_numpy(uniform_samples.copy())
        kernels.chain_speculative_sampling_triton(
            predicts, index.clone(), accepted, ids, index, None, None,
            noise[:, :-1].contiguous(), noise[:, -1].contiguous(), torch.from_numpy(target_probs),
            torch.from_numpy(draft_probs), 1.0, 1.0, True, block_verification=block,
        )  # fmt: skip
        rows = predicts.view(count, -1).numpy()
        return emitted(draft_token_ids, accepted, rows[np.arange(count), accepted.numpy()])

    return kernel


def sglang_dspark(folder: Path, form: str) -> Verify:
    """Adapter of SGLang's block-wise rejection for DSpark, in PyTorch or the interpreter; its noise uses a key."""

    class Struct:
        def __init_subclass__(cls, **_: Any) -> None:
            return None

    dspark = load_module(
        folder, "sglang.kernels.ops.speculative.dspark.blockwise_rejection",
        sglang__kernels__ops__speculative__dspark__dispatch={"inputs_on_cuda": None},
        msgspec={"Struct": Struct},
    )  # fmt: skip
    dspark.libdevice = device_functions()
    verify = getattr(dspark, f"blockwise_rejection_{form}")

    def kernel(draft_token_ids: Any, max_spec_len: int, draft_probs: Any, target_probs: Any, uniform_probs: Any,
               **_: Any) -> Any:  # fmt: skip
        tokens = draft_token_ids.reshape(-1, max_spec_len)
        noise = dspark.RejectionNoise()
        noise.key, noise.counter = int(uniform_probs[0] * 2**62), torch.zeros(1, dtype=torch.int64)
        accepted, extra, _ = verify(
            candidates=torch.nn.functional.pad(torch.from_numpy(tokens).long(), (1, 0)),
            target_logits=torch.from_numpy(target_probs).log(),
            draft_logits=torch.from_numpy(draft_probs).log().view(len(tokens), max_spec_len, -1),
            target_temperatures=torch.ones(len(tokens)), draft_temperatures=torch.ones(len(tokens)), noise=noise,
        )  # fmt: skip
        return emitted(tokens, accepted, extra)

    return kernel


def flashinfer(folder: Path) -> Verify:
    """Adapter of FlashInfer's ChainSpeculativeSampling, rewritten from `include/flashinfer/sampling.cuh` (CUDA).

    A uniform of curand is in (0, 1], so it is 1 minus the certificate's.
    """
    if "u * p < q" not in (folder / "include/flashinfer/sampling.cuh").read_text(encoding="utf-8"):
        raise ValueError(f"{folder}: the kernel's text is another; take the commit that the page names")

    def kernel(draft_probs: Any, draft_token_ids: Any, uniform_samples: Any, target_probs: Any) -> Any:
        count, length = draft_token_ids.shape
        at, uniforms = np.arange(count), np.float32(1.0) - uniform_samples
        accepted, going = np.zeros(count, dtype=np.int64), np.ones(count, dtype=np.bool_)
        for place in range(length):
            token = draft_token_ids[:, place]
            going &= uniforms[:, place] * draft_probs[at, place, token] < target_probs[at, place, token]
            accepted += going
        drafted = np.concatenate([draft_probs, np.zeros_like(target_probs[:, :1])], axis=1)
        residual = np.maximum(target_probs[at, accepted] - drafted[at, accepted], np.float32(0.0))
        cumulated = residual.cumsum(axis=1)
        above = (cumulated > uniforms[at, -1:] * residual.sum(axis=1, keepdims=True)) & (residual > 0)
        last = residual.shape[1] - 1 - (residual > 0)[:, ::-1].argmax(axis=1)
        return emitted(draft_token_ids, accepted, np.where(above.any(axis=1), above.argmax(axis=1), last))

    return kernel


def flashinfer_reference(folder: Path) -> Verify:
    verify = load(folder / "flashinfer/trace/templates/sampling.py", "_chain_speculative_sampling_reference")

    def kernel(draft_probs: Any, draft_token_ids: Any, uniform_samples: Any, target_probs: Any) -> Any:
        return verify(*map(torch.from_numpy, (draft_probs, draft_token_ids, target_probs))).numpy()

    return kernel

"""The public verifiers that are judged: which part of which project, by which adapter."""

from collections.abc import Callable
from functools import partial
from typing import Any, Final

import torch

from benchmarks.certificates import batches, chains, trees
from benchmarks.certificates.sources import PublicVerifier as Row

ASCEND = "vllm-project/vllm-ascend"
EAGLE = "SafeAILab/EAGLE"
FLASHINFER = "flashinfer-ai/flashinfer"
LANTERN = "jadohu/LANTERN"
SEQUOIA = "Infini-AI-Lab/Sequoia"
SGLANG = "sgl-project/sglang"
SJD = "tyshiwo1/Accelerating-T2I-AR-with-SJD"
SPEC_BENCH = "hemingkx/Spec-Bench"
VLLM = "vllm-project/vllm"
INTERPRETED: Final[dict[str, Any]] = {"count": 1, "margin": 0.25}
"""Kernels that Triton interprets are slow, and judged by samples."""


def tree(name: str, project: str, judged: str, build: Callable[..., Any], **more: Any) -> Row:
    """An `evaluate_posterior` of a tree whose siblings are the likeliest tokens."""
    return Row(name, project, judged, build, **{"interface": "eagle", "drawn": "top_k", "chain": False, **more})


def taken(name: str, project: str, judged: str, build: Callable[..., Any], **more: Any) -> Row:
    """A function on a tree whose siblings are drawn without replacement."""
    return Row(name, project, judged, build, "function", "without_replacement", chain=False, **more)


def eagle_in(place: str) -> Callable[..., Any]:
    return partial(trees.posterior, place=place)


VERIFIERS: tuple[Row, ...] = (
    tree("eagle", EAGLE, "evaluate_posterior", eagle_in("eagle/model/utils.py")),
    tree("eagle-float64", EAGLE, "evaluate_posterior on rows in float64", eagle_in("eagle/model/utils.py"), bits=53),
    tree(
        "spec-bench-eagle2",
        SPEC_BENCH,
        "EAGLE-2's evaluate_posterior, with logit processors",
        eagle_in("model/eagle2/utils.py"),
    ),
    tree(
        "spec-bench-eagle3",
        SPEC_BENCH,
        "EAGLE-3's evaluate_posterior, with logit processors",
        eagle_in("model/eagle3/utils.py"),
    ),
    tree(
        "spec-bench-samd",
        SPEC_BENCH,
        "SAMD's evaluate_posterior, with logit processors",
        eagle_in("model/samd/tree_model/eagle2/utils.py"),
    ),
    tree("angelslim", "Tencent/AngelSlim", "evaluate_posterior", trees.angelslim),
    tree("lantern-off", LANTERN, "dynamic trees, relaxation off", partial(trees.lantern, k=1, relaxed=False)),
    tree(
        "lantern-k1",
        LANTERN,
        "dynamic trees, one neighbour, delta 0.1",
        partial(trees.lantern, k=1, relaxed=True),
        relaxed="pools the probability of neighbouring codes",
    ),
    tree(
        "lantern-k2",
        LANTERN,
        "dynamic trees, two neighbours, delta 0.1",
        partial(trees.lantern, k=2, relaxed=True),
        relaxed="pools the probability of neighbouring codes",
    ),
    taken("lantern-static-off", LANTERN, "static trees, relaxation off", partial(trees.lantern_static, relaxed=False)),
    taken(
        "lantern-static-k1",
        LANTERN,
        "static trees, one neighbour, delta 0.1",
        partial(trees.lantern_static, relaxed=True),
        relaxed="pools the probability of neighbouring codes",
    ),
    tree(
        "medusa",
        "FasterDecoding/Medusa",
        "typical acceptance",
        trees.medusa,
        relaxed="typical acceptance keeps what is likely enough",
    ),
    taken("sequoia", SEQUOIA, "accept_step", partial(trees.sequoia, place="Tree/SpecTree.py", owner="SpecTree")),
    taken(
        "sequoia-float16",
        SEQUOIA,
        "accept_step on float16 tensors",
        partial(trees.sequoia, place="Tree/SpecTree.py", owner="SpecTree", dtype=torch.float16),
        bits=11,
    ),
    tree(
        "specinfer-in-sequoia",
        SEQUOIA,
        "accept_step of SpecInfer's trees",
        partial(trees.sequoia, place="Tree/SpecInferTree.py", owner="SpecInferTree"),
        interface="function",
        drawn="iid",
    ),
    tree("opt-tree", "Jikai0Wang/OPT-Tree", "verify of the classic form", trees.opt_tree, interface="function"),
    Row("sjd", SJD, "its sampler at temperature 1", chains.sjd, "function"),
    Row("sjd-temperature", SJD, "its sampler at temperature 0.7", partial(chains.sjd, temperature=0.7), "function"),
    Row("sjd-top-k", SJD, "its sampler with top-k 2", partial(chains.sjd, top_k=2), "function"),
    Row(
        "gsd",
        "junhyukso/GSD",
        "its sampler; a case has fewer codes than a group",
        partial(chains.sjd, grouped=1),
        "function",
        relaxed="accepts by the probability of a group of codes",
    ),
    Row("scd-cosmos", "junhyukso/SCD", "its sampler for Cosmos", chains.scd, "function"),
    Row(
        "scd-lumina",
        "junhyukso/SCD",
        "its sampler for Lumina-mGPT at temperature 0.7",
        partial(chains.sjd, place="lumina1/scheduler/jacobi_iteration_lumina_mgpt_SCDMC.py", temperature=0.7),
        "function",
    ),
    Row(
        "hsd",
        "ZhouYuxuanYX/Hierarchical-Speculative-Decoding",
        "_speculative_sampling for one draft, capped (backward, clever), with its tabs expanded",
        chains.hsd,
        "function",
    ),
    Row("sjd-pac", "KangJialiang/SJD-PAC", "its sampler with a tree of one level", chains.sjd_pac, "function"),
    Row("transformers", "huggingface/transformers", "_speculative_sampling", chains.transformers, "transformers"),
    Row(
        "transformers-ensemble",
        "huggingface/transformers",
        "_speculative_sampling with assistant_ensemble_weight 0.5",
        partial(chains.transformers, weight=0.5),
        "transformers",
        relaxed="mixes the drafter's distribution into the target's, by the weight",
    ),
    Row("spec-bench-sps", SPEC_BENCH, "SpS's _speculative_sampling", chains.spec_bench, "transformers"),
    Row("gpt-fast", "pytorch-labs/gpt-fast", "speculative_decode", chains.gpt_fast),
    Row("romsto", "romsto/Speculative-Decoding", "speculative_generate", chains.romsto),
    Row("lucidrains", "lucidrains/speculative-decoding", "speculative_decoding", chains.lucidrains),
    Row("feifeibear", "feifeibear/LLMSpeculativeSampling", "speculative_sampling", chains.feifeibear),
    Row(
        "feifeibear-seed",
        "feifeibear/LLMSpeculativeSampling",
        "speculative_sampling with random_seed, token 0 returned",
        chains.feifeibear_seed,
        "seeded",
        count=3,
    ),
    Row("deepspec", "deepseek-ai/DeepSpec", "verify_draft_tokens", chains.deepspec),
    Row(
        "tensorrt-llm",
        "NVIDIA/TensorRT-LLM",
        "get_rejected_indices and sample_rejected, typed from the file's text",
        chains.tensorrt,
    ),
    Row("mlx-lm", "ml-explore/mlx-lm", "speculative_generate_step, on NumPy", chains.mlx_lm, "function"),
    Row(
        "llama-cpp-python",
        "abetlen/llama-cpp-python",
        "Llama.generate with a draft model",
        chains.llama_cpp_python,
        "function",
    ),
    Row("vllm-ascend", ASCEND, "its sampler in PyTorch", batches.ascend, "vllm", count=10),
    Row(
        "vllm-ascend-block",
        ASCEND,
        "block verification in PyTorch, off by default, from three drafted tokens on",
        partial(batches.ascend, block=True),
        "vllm",
        count=16,
    ),
    Row(
        "vllm-ascend-entropy",
        ASCEND,
        "its sampler in PyTorch with entropy verification, off by default",
        partial(batches.ascend, entropy=True),
        "vllm",
        relaxed="accepts more at high entropy",
        count=10,
    ),
    Row("vllm-v1", VLLM, "the Triton kernels of the first model runner", batches.vllm_v1, "vllm", **INTERPRETED),
    Row("vllm-v2", VLLM, "rejection_sample of the second model runner", batches.vllm_v2, "vllm-block", **INTERPRETED),
    Row(
        "vllm-v2-block",
        VLLM,
        "rejection_sample of the second model runner, block verification",
        partial(batches.vllm_v2, block=True),
        "vllm-block",
        **INTERPRETED,
    ),
    Row("sglang-chain", SGLANG, "the Triton kernel of chains", batches.sglang_chain, "flashinfer", count=1),
    Row(
        "sglang-block",
        SGLANG,
        "the Triton kernel of chains, block verification",
        partial(batches.sglang_chain, block=True),
        "flashinfer",
        count=1,
    ),
    Row(
        "sglang-dspark",
        SGLANG,
        "block-wise rejection of DSpark in PyTorch",
        partial(batches.sglang_dspark, form="torch"),
        "vllm-block",
        count=6,
    ),
    Row(
        "sglang-dspark-triton",
        SGLANG,
        "block-wise rejection of DSpark, the Triton kernels",
        partial(batches.sglang_dspark, form="triton"),
        "vllm-block",
        **INTERPRETED,
    ),
    Row(
        "flashinfer",
        FLASHINFER,
        "chain_speculative_sampling, typed from the kernel's text",
        batches.flashinfer,
        "flashinfer",
    ),
    Row(
        "flashinfer-reference",
        FLASHINFER,
        "the reference of its trace",
        batches.flashinfer_reference,
        "flashinfer",
        relaxed="deterministic: accepts where the target's probability is the larger, else takes the likeliest token",
    ),
)

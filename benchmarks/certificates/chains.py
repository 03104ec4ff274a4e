"""Adapters of public verifiers of chains: 5 to 25 lines each."""

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch

from benchmarks.certificates.sources import PublicVerifier, load
from underpaint.algos.arrays import FloatArray
from underpaint.algos.chance import index_of
from underpaint.testing import scripted_noise

Verify = Callable[..., Any]


def _tensors(draft_probs: Any, target_probs: Any) -> tuple[Any, Any]:
    return torch.from_numpy(draft_probs), torch.from_numpy(target_probs)


def _transformers(weight: float | None = None) -> Callable[[Path], Verify]:
    def build(folder: Path) -> Verify:
        from transformers.generation.utils import _speculative_sampling

        def called(candidate_input_ids: Any, candidate_logits: Any, candidate_length: int, new_logits: Any) -> Any:
            tensors = torch.from_numpy(candidate_input_ids), torch.from_numpy(candidate_logits)
            return _speculative_sampling(*tensors, candidate_length, torch.from_numpy(new_logits), weight)

        return called

    return build


def _spec_bench(folder: Path) -> Verify:
    verify = load(folder / "model/sps/decoding.py", ["_speculative_sampling"])["_speculative_sampling"]

    def called(candidate_input_ids: Any, candidate_logits: Any, candidate_length: int, new_logits: Any) -> Any:
        tensors = torch.from_numpy(candidate_input_ids), torch.from_numpy(candidate_logits)
        return verify(*tensors, candidate_length, torch.from_numpy(new_logits), False, candidate_length)

    return called


def _gpt_fast(folder: Path) -> Verify:
    """One step; its race of exponentials becomes the certificate's draw."""

    def called(draft_probs: Any, target_probs: Any, draft_tokens: list[int]) -> Any:
        drafted, target = _tensors(draft_probs, target_probs)
        tokens = torch.tensor(draft_tokens)
        step = load(
            folder / "generate.py",
            ["speculative_decode"],
            Transformer=object,
            decode_n_tokens=lambda *_, **__: ([one.view(1) for one in tokens], list(drafted)),
            model_forward=lambda *_: target[None],
            logits_to_probs=lambda rows: rows,
            multinomial_sample_one_no_sync=lambda row: torch.multinomial(row, 1),
        )["speculative_decode"]
        return step(None, None, torch.tensor([0]), 0, len(draft_tokens)).tolist()

    return called


class _CycleEnded(Exception):
    pass


def _romsto(folder: Path) -> Verify:
    """The whole loop, ended as its second cycle begins."""
    loop = load(folder / "sampling/speculative_decoding.py", ["speculative_generate", "max_fn"], GreedyProcessor=object)

    def called(draft_probs: Any, target_probs: Any, draft_tokens: list[int]) -> Any:
        drafted, target = _tensors(draft_probs, target_probs)
        left, length, seen = list(draft_tokens), len(draft_tokens), []

        def drafter(input_ids: Any, **_: Any) -> Any:
            seen.append(input_ids[0].tolist())
            if None in seen:
                raise _CycleEnded
            return SimpleNamespace(logits=drafted[None, len(seen) - 1 : len(seen)], past_key_values=None)

        model = SimpleNamespace(
            device="cpu", config=SimpleNamespace(vocab_size=target.shape[1], max_position_embeddings=99)
        )

        class Target:
            device, config = "cpu", model.config

            def __call__(self, input_ids: Any, **_: Any) -> Any:
                if seen[-1] is None:  # a second cycle, which has no draft left to ask for
                    seen.append(input_ids[0].tolist())
                    raise _CycleEnded
                seen.append(None)
                return SimpleNamespace(logits=target[None], past_key_values=None)

        class Processor:
            def __call__(self, rows: Any) -> Any:
                return rows

            def sample(self, row: Any) -> Any:
                return torch.tensor([[left.pop(0)]]) if left else torch.multinomial(row.reshape(1, -1), 1)

        draft = type("Drafter", (), {"device": "cpu", "__call__": lambda self, **given: drafter(**given)})()
        generate = loop["speculative_generate"]
        try:
            tokens, _ = generate(
                [0], draft, Target(), tokenizer=None, gamma=length, logits_processor=Processor(),
                max_gen_len=length + 1, eos_tokens_id=-7, pad_token_id=0, use_cache=False, first_target=False,
                skip_sample_adjustment=False, debug=False,
            )  # fmt: skip
            return tokens
        except _CycleEnded:
            return seen[-1][1:]

    return called


class _Cache:
    """feifeibear's KVCacheModel, with a table in the place of its model."""

    def __init__(self, model: Any, *_: Any) -> None:
        self.tokens, self.rows, self._prob_history = model.tokens, model.rows, None

    def generate(self, prefix: Any, count: int) -> Any:
        self._prob_history = self.rows[None].clone()
        return torch.cat([prefix, torch.tensor([self.tokens])], dim=1) if self.tokens else prefix

    def rollback(self, end: int) -> None:
        self._prob_history = self._prob_history[:, :end]


def _feifeibear(folder: Path, seed: int | None = None) -> Verify:
    given = load(folder / "sampling/utils.py", ["sample", "max_fn"])
    kept = {"sample": given["sample"], "max_fn": given["max_fn"], "KVCacheModel": _Cache}
    loop = load(folder / "sampling/speculative_sampling.py", ["speculative_sampling"], **kept)["speculative_sampling"]

    def called(draft_probs: Any, target_probs: Any, draft_tokens: list[int]) -> Any:
        drafted, target = _tensors(draft_probs, target_probs)
        drafter = SimpleNamespace(device="cpu", tokens=draft_tokens, rows=drafted)
        model = SimpleNamespace(device="cpu", tokens=[], rows=target)
        return loop(torch.tensor([[0]]), drafter, model, 1, len(draft_tokens), random_seed=seed)[0, 1:].tolist()

    return called


def _deepspec(folder: Path) -> Verify:
    names = ["logits_to_probs", "sample_from_probs", "gather_token_probs", "sample_residual"]
    helpers = load(folder / "deepspec/utils/sampling.py", names)
    place = folder / "deepspec/eval/base_evaluator.py"
    verify = load(place, ["verify_draft_tokens"], VerificationResult=SimpleNamespace, **{n: helpers[n] for n in names})

    def called(draft_probs: Any, target_probs: Any, draft_tokens: list[int]) -> Any:
        drafted, target = _tensors(draft_probs, target_probs)
        count = len(draft_tokens)
        proposal = SimpleNamespace(
            draft_token_count=count, draft_probs=drafted[None], verify_input_ids=torch.tensor([[0, *draft_tokens]])
        )
        found = verify["verify_draft_tokens"](
            target_model=lambda **_: SimpleNamespace(logits=torch.log(target)[None]), proposal=proposal,
            position_ids=torch.arange(count + 1)[None], start=0, past_key_values_target=None, temperature=1.0,
            max_proposal_tokens=count,
        )  # fmt: skip
        return found.committed_tokens[0].tolist()

    return called


def _tensorrt(folder: Path) -> Verify:
    names = ["get_rejected_indices", "sample_rejected"]
    place = folder / "tensorrt_llm/_torch/pyexecutor/sampling_utils.py"
    parts = load(place, names, cast=lambda _, value: value)

    def called(draft_probs: Any, target_probs: Any, draft_tokens: list[int]) -> Any:
        drafted, target = _tensors(draft_probs, target_probs)
        generator = SimpleNamespace(device="cpu")
        rejected = parts["get_rejected_indices"](drafted, target[: len(draft_tokens)], generator, draft_tokens)
        if not len(rejected):
            return [*draft_tokens, int(torch.multinomial(target[-1], 1))]
        accepted = int(rejected[0])
        return [*draft_tokens[:accepted], int(parts["sample_rejected"](drafted, target, generator, accepted))]

    return called


def _sjd(temperature: float, top_k: int = 0) -> Callable[[Path], Verify]:
    """The sampler is given rows after the warpers; a rejection goes through them once more."""

    def warper(_: Any, scores: Any) -> Any:
        scores = scores / temperature
        if top_k:
            scores = scores.masked_fill(scores < torch.topk(scores, top_k)[0][..., -1:], -torch.inf)
        return scores

    def build(folder: Path) -> Verify:
        place = folder / "scheduler/jacobi_iteration_lumina_mgpt.py"
        owner = load(place, ["SpeculativeSampler"])["SpeculativeSampler"]

        def verify(draft: Any, uniforms: Any) -> Any:
            size, vocab_size = draft.target_probs.shape
            sampler = owner(
                reject_sampling_relative_ids=torch.zeros(1),
                reject_sampling_draft_token_logits=torch.zeros(1, vocab_size, dtype=torch.float64),
                sampling_last_draft_token=torch.zeros(1),
            )
            target, drafted = torch.from_numpy(draft.target_probs)[None], torch.from_numpy(draft.tree.draft_probs)
            drafted = torch.cat([drafted[:1], drafted[:-1]])[None]  # row i is what draft i was drawn from
            tokens = torch.from_numpy(draft.tree.tokens.copy())[None]
            advanced = torch.full((1, size), index_of(draft.target_probs[-1], float(uniforms[-1])))
            with scripted_noise(np.repeat(uniforms[:-1], vocab_size), uniforms[-1:]):
                ids, found, _ = sampler(
                    tokens, advanced, drafted, target, None, warper, torch.zeros(1, 0, dtype=torch.long)
                )
            out = found[0, : ids[0]].tolist()
            return tuple(range(1, len(out))), out[-1]

        return verify

    return build


def _hsd(folder: Path) -> Verify:
    """One draft, capped, as its scripts run it. No step back is possible at the first place, so its noise is spent."""
    verify = load(folder / "transformers/generation/utils.py", ["_speculative_sampling"])["_speculative_sampling"]

    def called(draft: Any, uniforms: FloatArray) -> tuple[tuple[int, ...], int]:
        length = draft.tree.size - 1
        with np.errstate(divide="ignore"):
            drafted, target = (
                torch.from_numpy(np.log(one))[None] for one in (draft.tree.draft_probs, draft.target_probs)
            )
        tokens = torch.from_numpy(draft.tree.tokens.copy())[None]
        noise = np.concatenate([[0.5], uniforms[: length - 1], np.full(length, uniforms[length - 1])])
        with scripted_noise(noise, uniforms[length:]):
            found, kept, _ = verify(
                tokens, drafted[:, :length], length, target, torch.tensor([False]), backward=True, clever=True,
                stop=lambda ids, scores: False,
            )  # fmt: skip
        return tuple(range(1, int(kept) + 1)), int(found[0, -1])

    return called


def _chain(
    name: str, project: str, judged: str, build: Callable[[Path], Verify], interface: Any = "tensorrt-llm", **more: Any
) -> PublicVerifier:
    return PublicVerifier(name, project, judged, build, interface, "iid", **more)


DIVERSE = "mixes the drafter's distribution into the target's, by the weight"
CHAINS: tuple[PublicVerifier, ...] = (
    _chain("sjd", "tyshiwo1/Accelerating-T2I-AR-with-SJD", "its sampler at temperature 1", _sjd(1.0), "function"),
    _chain(
        "sjd-temperature",
        "tyshiwo1/Accelerating-T2I-AR-with-SJD",
        "its sampler at temperature 0.7",
        _sjd(0.7),
        "function",
    ),
    _chain("sjd-top-k", "tyshiwo1/Accelerating-T2I-AR-with-SJD", "its sampler with top-k 2", _sjd(1.0, 2), "function"),
    _chain("transformers", "huggingface/transformers", "_speculative_sampling", _transformers(), "transformers"),
    _chain(
        "transformers-ensemble",
        "huggingface/transformers",
        "the same, assistant_ensemble_weight 0.5",
        _transformers(0.5),
        "transformers",
        relaxed=DIVERSE,
    ),
    _chain("spec-bench-sps", "hemingkx/Spec-Bench", "SpS's _speculative_sampling", _spec_bench, "transformers"),
    _chain(
        "hsd",
        "ZhouYuxuanYX/Hierarchical-Speculative-Decoding",
        "_speculative_sampling for one draft, capped (backward, clever), with its tabs expanded",
        _hsd,
        "function",
    ),
    _chain("gpt-fast", "pytorch-labs/gpt-fast", "speculative_decode", _gpt_fast),
    _chain("romsto", "romsto/Speculative-Decoding", "speculative_generate", _romsto),
    _chain("feifeibear", "feifeibear/LLMSpeculativeSampling", "speculative_sampling", _feifeibear),
    _chain("deepspec", "deepseek-ai/DeepSpec", "verify_draft_tokens", _deepspec),
    _chain(
        "tensorrt-llm",
        "NVIDIA/TensorRT-LLM",
        "get_rejected_indices and sample_rejected, taken from the file alone",
        _tensorrt,
    ),
)

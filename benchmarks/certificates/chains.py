"""Adapters of public verifiers of chains that are called once a request: 5 to 25 lines each."""

import contextlib
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch

from benchmarks.certificates.sources import Unpinned, Verify, load
from underpaint.algos.chance import index_of
from underpaint.testing import scripted_noise


class CycleEnded(Exception):
    """Raised by a stand-in model when a second cycle begins."""


def tensors(draft_probs: Any, target_probs: Any) -> tuple[Any, Any]:
    return torch.from_numpy(draft_probs), torch.from_numpy(target_probs)


def transformers(folder: Path, weight: float | None = None) -> Verify:
    from transformers.generation.utils import _speculative_sampling

    def called(candidate_input_ids: Any, candidate_logits: Any, candidate_length: int, new_logits: Any) -> Any:
        arrays = torch.from_numpy(candidate_input_ids), torch.from_numpy(candidate_logits)
        return _speculative_sampling(*arrays, candidate_length, torch.from_numpy(new_logits), weight)

    return called


def spec_bench(folder: Path) -> Verify:
    verify = load(folder / "model/sps/decoding.py", "_speculative_sampling")

    def called(candidate_input_ids: Any, candidate_logits: Any, candidate_length: int, new_logits: Any) -> Any:
        arrays = torch.from_numpy(candidate_input_ids), torch.from_numpy(candidate_logits)
        return verify(*arrays, candidate_length, torch.from_numpy(new_logits), False, candidate_length)

    return called


def gpt_fast(folder: Path) -> Verify:
    """Adapter of one step; the certificate's draw replaces its race of exponentials."""
    step = load(
        folder / "generate.py", "speculative_decode", logits_to_probs=lambda rows: rows,
        multinomial_sample_one_no_sync=lambda row: torch.multinomial(row, 1),
    )  # fmt: skip

    def called(draft_probs: Any, target_probs: Any, draft_tokens: list[int]) -> Any:
        drafted, target = tensors(draft_probs, target_probs)
        tokens = torch.tensor(draft_tokens)
        step.__globals__["decode_n_tokens"] = lambda *_, **__: ([one.view(1) for one in tokens], list(drafted))
        step.__globals__["model_forward"] = lambda *_: target[None]
        return step(None, None, torch.tensor([0]), 0, len(draft_tokens)).tolist()

    return called


def romsto(folder: Path) -> Verify:
    """Adapter of the whole loop, ended when its second cycle begins."""
    generate = load(
        folder / "sampling/speculative_decoding.py", "speculative_generate", "max_fn", GreedyProcessor=object
    )

    def called(draft_probs: Any, target_probs: Any, draft_tokens: list[int]) -> Any:
        drafted, target = tensors(draft_probs, target_probs)
        queue, seen = list(draft_tokens), []
        sizes = SimpleNamespace(vocab_size=target.shape[1], max_position_embeddings=99)

        class Model:
            device, config = "cpu", sizes

            def __init__(self, rows: Any) -> None:
                self.rows = rows

            def __call__(self, input_ids: Any, **_: Any) -> Any:
                seen.append(input_ids[0].tolist())
                if len(seen) > len(draft_tokens) + 1:
                    raise CycleEnded
                rows = self.rows if self.rows is target else drafted[len(seen) - 1 : len(seen)]
                return SimpleNamespace(logits=rows[None], past_key_values=None)

        class Processor:
            def __call__(self, rows: Any) -> Any:
                return rows

            def sample(self, row: Any) -> Any:
                return torch.tensor([[queue.pop(0)]]) if queue else torch.multinomial(row.reshape(1, -1), 1)

        try:
            return generate(
                [0], Model(drafted), Model(target), tokenizer=None, gamma=len(draft_tokens),
                logits_processor=Processor(), max_gen_len=len(draft_tokens) + 1, eos_tokens_id=-7, pad_token_id=0,
                use_cache=False, first_target=False, skip_sample_adjustment=False, debug=False,
            )[0]  # fmt: skip
        except CycleEnded:
            return seen[-1][1:]

    return called


class Cache:
    """feifeibear's KVCacheModel, with a table instead of its model."""

    def __init__(self, model: Any, *_: Any) -> None:
        self.tokens, self.rows, self._prob_history = model.tokens, model.rows, None

    def generate(self, prefix: Any, count: int) -> Any:
        self._prob_history = self.rows[None].clone()
        return torch.cat([prefix, torch.tensor([self.tokens])], dim=1) if self.tokens else prefix

    def rollback(self, end: int) -> None:
        self._prob_history = self._prob_history[:, :end]


def feifeibear(folder: Path, seeded: bool = False) -> Verify:
    """Adapter of the loop over two tables. seeded: pass `random_seed` and replace `sample`, which raises on token 0."""
    place = folder / "sampling/utils.py"
    loop = load(
        folder / "sampling/speculative_sampling.py", "speculative_sampling", max_fn=load(place, "max_fn"),
        sample=(lambda row: torch.multinomial(row, 1)) if seeded else load(place, "sample"), KVCacheModel=Cache,
    )  # fmt: skip

    def called(draft_probs: Any, target_probs: Any, draft_tokens: list[int], seed: int | None = None) -> Any:
        drafted, target = tensors(draft_probs, target_probs)
        drafter = SimpleNamespace(device="cpu", tokens=draft_tokens, rows=drafted)
        model = SimpleNamespace(device="cpu", tokens=[], rows=target)
        return loop(torch.tensor([[0]]), drafter, model, 1, len(draft_tokens), random_seed=seed)[0, 1:].tolist()

    def verify(draft: Any, seed: int) -> Any:
        tree = draft.tree
        out = called(tree.draft_probs[:-1].copy(), draft.target_probs, tree.tokens[1:].tolist(), seed + 1)
        return range(1, len(out)), out[-1]

    return verify if seeded else called


def lucidrains(folder: Path) -> Verify:
    """Adapter of the whole loop, ended when its second cycle begins; top-k keeps every token."""
    axes = {
        "b -> b 1 1": lambda one: one[:, None, None], "b n 1 -> b n": lambda one: one[..., 0],
        "b -> b 1": lambda one: one[:, None], "b 1 d -> b d": lambda one: one[:, 0],
        "... -> ... 1": lambda one: one[..., None],
    }  # fmt: skip
    loop = load(
        folder / "speculative_decoding/speculative_decoding.py", "speculative_decoding", "find_first_true_index",
        "safe_div", top_k=lambda rows, thres: rows, rearrange=lambda one, pattern: axes[pattern](one),
    )  # fmt: skip

    def called(draft_probs: Any, target_probs: Any, draft_tokens: list[int]) -> Any:
        drafted, target = (one.log()[None] for one in tensors(draft_probs, target_probs))
        count, seen, queue = len(draft_tokens), [], list(draft_tokens)
        cache = torch.zeros(1, 99, 1), None

        def small(out: Any, **_: Any) -> Any:
            seen.append(out)
            if len(seen) > count:
                raise CycleEnded
            return drafted[:, len(seen) - 1 : len(seen)], cache

        loop.__globals__["gumbel_sample"] = lambda *_, **__: torch.tensor([queue.pop(0)])
        try:
            outputs = loop(lambda *_, **__: (target, cache), small, torch.tensor([[0]]), count + 2, count)
            return outputs[0][0].tolist()
        except CycleEnded:
            return seen[-1][0, 1:].tolist()

    return called


def deepspec(folder: Path) -> Verify:
    names = ("sample_residual", "logits_to_probs", "sample_from_probs", "gather_token_probs")
    helpers = load(folder / "deepspec/utils/sampling.py", *names).__globals__
    verify = load(
        folder / "deepspec/eval/base_evaluator.py", "verify_draft_tokens", VerificationResult=SimpleNamespace,
        **{name: helpers[name] for name in names},
    )  # fmt: skip

    def called(draft_probs: Any, target_probs: Any, draft_tokens: list[int]) -> Any:
        drafted, target = tensors(draft_probs, target_probs)
        count = len(draft_tokens)
        proposal = SimpleNamespace(
            draft_token_count=count, draft_probs=drafted[None], verify_input_ids=torch.tensor([[0, *draft_tokens]])
        )
        outcome = verify(
            target_model=lambda **_: SimpleNamespace(logits=torch.log(target)[None]), proposal=proposal,
            position_ids=torch.arange(count + 1)[None], start=0, past_key_values_target=None, temperature=1.0,
            max_proposal_tokens=count,
        )  # fmt: skip
        return outcome.committed_tokens[0].tolist()

    return called


def tensorrt(folder: Path) -> Verify:
    place = folder / "tensorrt_llm/_torch/pyexecutor/sampling_utils.py"
    find, draw = (
        load(place, name, cast=lambda _, value: value, torch=Unpinned())
        for name in ("get_rejected_indices", "sample_rejected")
    )

    def called(draft_probs: Any, target_probs: Any, draft_tokens: list[int]) -> Any:
        drafted, target = tensors(draft_probs, target_probs)
        generator = SimpleNamespace(device="cpu")
        rejected = find(drafted, target[: len(draft_tokens)], generator, draft_tokens)
        if not len(rejected):
            return [*draft_tokens, int(torch.multinomial(target[-1], 1))]
        accepted = int(rejected[0])
        return [*draft_tokens[:accepted], int(draw(drafted, target, generator, accepted))]

    return called


def sjd(folder: Path, place: str = "scheduler/jacobi_iteration_lumina_mgpt.py", **settings: float) -> Verify:
    """Adapter of SJD's sampler and of samplers made from it. As in their loops, it gets rows after the warpers."""
    temperature, top_k = settings.get("temperature", 1.0), int(settings.get("top_k", 0))

    def warper(_: Any, scores: Any) -> Any:
        scores = scores / temperature
        if top_k:
            scores = scores.masked_fill(scores < torch.topk(scores, top_k)[0][..., -1:], -torch.inf)
        return scores

    sampler = load(folder / place, "SpeculativeSampler")(
        reject_sampling_relative_ids=torch.zeros(1), reject_sampling_draft_token_logits=torch.zeros(1, 1),
        sampling_last_draft_token=torch.zeros(1),
    )  # fmt: skip

    def verify(draft: Any, uniforms: Any) -> Any:
        size, vocab_size = draft.target_probs.shape
        sampler.reject_sampling_draft_token_logits = torch.zeros(1, vocab_size, dtype=torch.float64)
        target, drafted = torch.from_numpy(draft.target_probs)[None], torch.from_numpy(draft.tree.draft_probs)
        drafted = torch.cat([drafted[:1], drafted[:-1]])[None]  # draft i was drawn from row i
        advanced = torch.full((1, size), index_of(draft.target_probs[-1], float(uniforms[-1])))
        more = (drafted.log(), target.log()) if "grouped" in settings else ()
        tests = np.tile(np.repeat(uniforms[:-1], vocab_size), 2)  # one per token; GSD draws them twice
        with scripted_noise(tests, np.repeat(uniforms[-1:], size)):
            ids, tokens, _ = sampler(
                torch.from_numpy(draft.tree.tokens.copy())[None], advanced, drafted, target, *more,
                None, warper, torch.zeros(1, 0, dtype=torch.long), head_img_sims=torch.zeros(vocab_size, vocab_size),
            )  # fmt: skip
        return range(1, ids[0]), int(tokens[0, ids[0] - 1])

    return verify


def scd(folder: Path) -> Verify:
    """Adapter of SCD's sampler for Cosmos, which draws a replacement at every position."""
    place = folder / "cosmos/cosmos1/models/autoregressive/sjd/speculative_sampler.py"
    sampler = load(place, "CosmosSpeculativeSampler")()

    def verify(draft: Any, uniforms: Any) -> Any:
        size = len(draft.target_probs)
        drafted = torch.from_numpy(draft.tree.draft_probs)
        advanced = torch.full((1, size), index_of(draft.target_probs[-1], float(uniforms[-1])))
        with scripted_noise(uniforms[1:-1], np.repeat(uniforms[-1:], size)):
            ids, tokens, _ = sampler(
                torch.from_numpy(draft.tree.tokens.copy())[None], advanced,
                torch.cat([drafted[:1], drafted[:-1]])[None], torch.from_numpy(draft.target_probs)[None],
            )  # fmt: skip
        return range(1, ids[0]), int(tokens[0, ids[0] - 1])

    return verify


def hsd(folder: Path) -> Verify:
    """Adapter of one capped draft, as HSD's scripts run it. The first place cannot step back, so its noise is fixed."""
    decide = load(folder / "transformers/generation/utils.py", "_speculative_sampling")

    def verify(draft: Any, uniforms: Any) -> Any:
        length = draft.tree.size - 1
        with np.errstate(divide="ignore"):
            drafted, target = (
                torch.from_numpy(np.log(one))[None] for one in (draft.tree.draft_probs, draft.target_probs)
            )
        noise = np.concatenate([[0.5], uniforms[: length - 1], np.full(length, uniforms[length - 1])])
        with scripted_noise(noise, uniforms[length:]):
            tokens, accepted, _ = decide(
                torch.from_numpy(draft.tree.tokens.copy())[None], drafted[:, :length], length, target,
                torch.tensor([False]), backward=True, clever=True, stop=lambda ids, scores: False,
            )  # fmt: skip
        return range(1, int(accepted) + 1), int(tokens[0, -1])

    return verify


def sjd_pac(folder: Path) -> Verify:
    """Adapter of a tree with one level, so a chain; its padding covers the tokens of the case."""
    place = folder / "scheduler/sjd_pac_iteration_lumina_mgpt.py"
    sampler = load(place, "SJDPACSpeculativeSampler")()
    load(place, "setup_speculative_tree_buffers")(sampler, 2, 1, "cpu")
    sampler.img_start, sampler.tree_width = 0, 1  # one token is drawn per position

    def verify(draft: Any, uniforms: Any) -> Any:
        size, vocab_size = draft.target_probs.shape
        sampler.img_end, sampler.uni_val, sampler._uniform_pad = vocab_size, 1.0 / vocab_size, None
        drafted = torch.from_numpy(draft.tree.draft_probs)
        with scripted_noise(uniforms[1:-1], np.repeat(uniforms[-1:], size)):
            accepted, _, after, _ = sampler(
                torch.from_numpy(draft.tree.tokens.copy())[None], torch.cat([drafted[:1], drafted[:-1]])[None],
                torch.from_numpy(draft.target_probs.copy())[None],
            )  # fmt: skip
        return range(1, accepted), int(after[0, 0])

    return verify


def llama_cpp_python(folder: Path) -> Verify:
    """Adapter of `Llama.generate` with a draft model; the first token that it emits is the root."""
    generate = load(folder / "llama_cpp/llama.py", "Llama.generate", ctypes=__import__("ctypes"))

    def verify(draft: Any, uniforms: Any) -> Any:
        tokens, emitted = draft.tree.tokens.tolist(), []

        class Model:
            n_tokens, verbose, _n_ctx, _scores, _requires_eval = 0, False, 99, None, True
            input_ids, _ctx = np.zeros(99, dtype=int), SimpleNamespace(kv_cache_seq_rm=lambda *_: True)
            _input_ids, _init_sampler, reset = input_ids, lambda self, **_: None, lambda self: None

            def eval(self, some: Any) -> None:
                self.input_ids[self.n_tokens : self.n_tokens + len(some)] = some
                self.n_tokens += len(some)

            def sample(self, idx: int, **_: Any) -> int:
                return tokens[0] if not idx else index_of(draft.target_probs[idx - 1], float(uniforms[idx]))

            def draft_model(self, before: Any) -> Any:
                if len(emitted) > 1:
                    raise CycleEnded
                return np.array(tokens[1:])

        with contextlib.suppress(CycleEnded):
            for token in generate(Model(), [0]):
                emitted.append(token)
        return range(1, len(emitted) - 1), emitted[-1]

    return verify


def mlx_lm(folder: Path) -> Verify:
    """Adapter of `speculative_generate_step`, with NumPy instead of MLX, and a sampler that draws."""

    def silent(*_: Any, **__: Any) -> None:
        return None

    mx = SimpleNamespace(
        array=np.array, concatenate=np.concatenate, uint32=np.uint32, eval=silent, async_eval=silent,
        clear_cache=silent, stream=lambda _: contextlib.nullcontext(),
        logsumexp=lambda rows, axis, keepdims: np.log(np.exp(rows).sum(axis, keepdims=keepdims)),
    )  # fmt: skip
    cache = SimpleNamespace(
        make_prompt_cache=lambda model: [], can_trim_prompt_cache=lambda _: True, trim_prompt_cache=silent
    )
    step = load(
        folder / "mlx_lm/generate.py", "speculative_generate_step", mx=mx, cache=cache, generation_stream=None,
        functools=__import__("functools"), maybe_quantize_kv_cache=silent,
    )  # fmt: skip

    def verify(draft: Any, uniforms: Any) -> Any:
        queue = draft.tree.tokens[1:].tolist()
        with np.errstate(divide="ignore"):
            target, drafted = np.log(draft.target_probs), np.log(draft.tree.draft_probs)

        def sampler(rows: Any) -> Any:
            if len(rows) == 1:  # the drafter's
                return np.array([queue.pop(0)])
            pairs = zip(np.exp(rows), uniforms[1:], strict=True)
            return np.array([index_of(row, float(uniform)) for row, uniform in pairs])

        out = []
        steps = step(
            np.array([0]), lambda ids, cache: target[None], lambda ids, cache: drafted[None, :1],
            num_draft_tokens=len(queue), max_tokens=99, sampler=sampler,
        )  # fmt: skip
        for token, _, from_draft in steps:
            out.append(int(token))
            if not from_draft:
                break
        return range(1, len(out)), out[-1]

    return verify

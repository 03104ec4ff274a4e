"""What `benchmarks.device` holds the device runtime to before it times anything: the reference, and its own float32."""

from collections.abc import Sequence
from copy import deepcopy
from typing import Any, NamedTuple

import numpy as np
import torch

from benchmarks.device_models import shipped_method, shipped_models, shipped_prompts
from benchmarks.device_trees import agrees
from tools.device_programs import narrow_layers
from underpaint.algos.accept import RULES
from underpaint.algos.chance import Philox, Role
from underpaint.algos.rows import SamplingParams, sampling_probs
from underpaint.models.decoder import Decoder
from underpaint.runtime.device.decoder import DecoderForward
from underpaint.runtime.device.forwards import Cache, causal_masks
from underpaint.runtime.device.kernels.probs import probs
from underpaint.runtime.device.kernels.uniforms import cell_uniforms
from underpaint.runtime.device.providers import FP8_CAPABILITY
from underpaint.runtime.device.runner import DeviceRunner
from underpaint.runtime.methods.method import ModelTables
from underpaint.runtime.methods.registry import resolve

LOGITS_APART = 2e-4
"""Bound on the difference of float32 logits between two orders of the same sums, relative to the largest logit."""
HALF_APART = 0.05
"""Bound on the mean total variation of next tokens at temperature 1, guidance 1: half precision against float32."""


class Check(NamedTuple):
    """A figure and its upper bound."""

    value: float
    bound: float

    @property
    def holds(self) -> bool:
        """Whether the figure is a number within the bound."""
        return bool(np.isfinite(self.value)) and self.value <= self.bound

    def to_record(self) -> dict[str, Any]:
        """Return the check as it is recorded."""
        return {"value": self.value, "bound": self.bound, "holds": self.holds}


def equal(same: bool) -> Check:
    """Return a check of equality, with the value 0 if it holds."""
    return Check(0.0 if same else 1.0, 0.0)


def correctness(device: torch.device) -> dict[str, Check]:
    """Check uniforms bit for bit, distributions within 1e-5 with the reference's support, and every rule's verdicts."""

    def whole(*numbers: int) -> torch.Tensor:
        return torch.tensor(numbers, dtype=torch.int64, device=device)

    out = torch.zeros(1, 1, 70, dtype=torch.float64, device=device)
    cell_uniforms(out, whole(2**40), whole(9), whole(1000), whole(0), whole(2))
    same = bool((out.cpu().numpy()[0, 0] == Philox(2**40, 9).uniforms(1000, Role(2), 70)).all())
    small = device.type == "cpu"
    nodes, vocab_size = (2, 300) if small else (60, 16384)
    logits = (3 * np.random.default_rng(0).standard_normal((2, nodes, vocab_size))).astype(np.float32)
    apart, unlike = 0.0, 0.0
    for sampler in (SamplingParams(guidance=4.0, top_k=100), SamplingParams(guidance=2.0, temperature=0.8, top_p=0.9)):
        distributions = torch.zeros(1, nodes, vocab_size, device=device)
        marks = torch.zeros(2, 1, nodes, dtype=torch.int32, device=device)
        probs(torch.from_numpy(logits).to(device)[:, None], distributions, marks[0], marks[1], whole(nodes), sampler)
        actual, expected = distributions.cpu().numpy()[0], sampling_probs(logits, sampler)
        apart = max(apart, float(np.abs(actual - expected).max()))
        unlike = max(unlike, float(((actual > 0) != (expected > 0)).mean()))
    count, size, codes = (2, 8, 50) if small else (40, 60, 1000)
    rules = {
        f"rule {name}": equal(all(agrees(name, device, size, codes, seed) for seed in range(count)))
        for name in [spec.name for spec in RULES if spec.device]
    }
    return {"uniforms": equal(same), "distributions": Check(apart, 1e-5), "support": Check(unlike, 1e-5), **rules}


def parity(device: torch.device) -> dict[str, Check]:
    """Compare the shipped target's pass on the device with the module's own forward on the CPU in float32, also with
    quantised weights. Then compare half precision on the device with float32: bfloat16, or float16 in the interpreter,
    which has no bfloat16."""
    length, half = (4, torch.float16) if device.type == "cpu" else (48, torch.bfloat16)
    models = shipped_models(torch.device("cpu"), torch.float32, tiny=device.type == "cpu").models
    module, condition = models.module, models.embed(shipped_prompts(1)).rows
    tokens = torch.from_numpy(np.random.default_rng(0).integers(0, module.config.vocab_size, (1, length)))
    single, narrow = (_pass(module, condition, tokens, device, dtype) for dtype in (torch.float32, half))
    moved = 0.5 * (single.softmax(dim=-1) - narrow.softmax(dim=-1)).abs().sum(dim=-1).mean()
    checks = {f"{str(half).removeprefix('torch.')} total variation": Check(float(moved), HALF_APART)}
    older = device.type == "cuda" and torch.cuda.get_device_capability(device) < FP8_CAPABILITY
    for name in ("float32", "int8", "int8/64", *([] if older else ["fp8"])):
        model = deepcopy(module)
        if name != "float32":
            narrow_layers(model, name)
        with torch.no_grad():
            expected = model(tokens, condition)[0][:, 1:]
        apart = (_pass(model, condition, tokens, device, torch.float32) - expected).abs().max()
        checks[f"{name} logits"] = Check(float(apart / expected.abs().max()), LOGITS_APART)
    return checks


def _pass(
    module: Decoder, condition: torch.Tensor, tokens: torch.Tensor, device: torch.device, dtype: torch.dtype
) -> torch.Tensor:
    """Run the device's forward over `tokens` after a condition; returns logits [1, T, V] on the CPU."""
    forward = DecoderForward(deepcopy(module).to(device, dtype).eval(), 1)
    prefix, length = condition.shape[1], tokens.shape[1]
    cache = Cache(forward.config, 1, prefix + length, length, dtype, device)
    with torch.no_grad():
        before = torch.arange(-prefix, 0, device=device)[None]
        forward.hidden(condition.to(device, dtype, copy=True), before, cache.prefill())  # the forward writes to it
        lengths = torch.tensor([prefix], device=device)
        masks = causal_masks(length, cache.words, device)[None]
        cells = torch.arange(length, device=device)[None]
        attend = cache.attend(0, lengths, masks, prefix + length)
        logits = forward.logits(forward.hidden(forward.embed(tokens.to(device)), cells, attend))
    return logits.cpu()


def identity(device: torch.device, names: Sequence[str], tables: ModelTables) -> dict[str, Check]:
    """Count, per lossless method, the shipped weights' pictures at temperature 0 in float32 unlike plain decoding's."""
    models, grid, sampler = shipped_models(device, torch.float32, tiny=device.type == "cpu")
    conditions = shipped_prompts(1 if device.type == "cpu" else 8)
    batch = models.embed(conditions)
    decoded: dict[str, list[list[int]]] = {}
    for name in ("ar", *names):
        how = shipped_method(name, 0.0, sampler, tables)
        if how is None or not resolve(name, 0.0).build(name, tables).lossless:
            continue
        prefix = batch.rows.shape[1]
        drafter = models.drafter if how.drafts else None
        runner = DeviceRunner(models.target, drafter, how, grid, prefix, len(conditions), device)
        keys = [one.noise_key for one in conditions]
        runner.begin(batch.rows, [0] * len(keys), keys, batch.hidden)
        images = runner.finish(len(conditions))
        decoded[name] = [[] if image.tokens is None else image.tokens.tolist() for image in images]
    plain = decoded.pop("ar")
    return {
        name: Check(sum(one != other for one, other in zip(pictures, plain, strict=True)), 0.0)
        for name, pictures in decoded.items()
    }

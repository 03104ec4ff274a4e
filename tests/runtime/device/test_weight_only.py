"""Narrow weights on the device: passes are those of the numbers that the weights stand for."""

from copy import deepcopy
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from tests.runtime.device.test_kernels import (
    FAMILIES,
    condition_is_taken_in_as_the_model_does,
    model_of,
    tree_pass_is_the_model_s,
)
from tests.runtime.device.test_mutants import planted
from tests.runtime.device.test_weights import CPU, passed, written
from tools.device_programs import narrow_layers
from underpaint.algos.accept import RULES
from underpaint.algos.draft import POLICIES
from underpaint.algos.protocols import Grid
from underpaint.algos.rows import SamplingParams
from underpaint.artifacts.scaled_rows import ScaledRows, scaled_rows
from underpaint.export import decoder_weights
from underpaint.export.decoder_weights import round_to_scaled_rows
from underpaint.export.decoders import GraphFormat
from underpaint.models.decoder import Decoder
from underpaint.models.layers import Layer
from underpaint.runtime.conditions import ConditionEncoder
from underpaint.runtime.device.decoder import DecoderForward
from underpaint.runtime.device.folder import DeviceModels, FolderModels
from underpaint.runtime.device.kernels.layers import ADD, GATE, product
from underpaint.runtime.device.low_models import LowFiles
from underpaint.runtime.device.providers import check_forward
from underpaint.runtime.device.runner import DeviceRunner
from underpaint.runtime.device.weight_only import (
    MATRICES,
    QUANTISED_TYPES,
    WeightOnlyLinear,
    quantise_layers,
    quantised,
)
from underpaint.runtime.device.weights import decoder_bytes, read_decoder
from underpaint.runtime.engines.context import EngineContext, EngineError, Quantization
from underpaint.runtime.methods.trees.device import TreeForm
from underpaint.runtime.pipeline import Pipeline
from underpaint.serve.models import ServedModels
from underpaint.zoo.load import FOLDER

INT8, FP8 = QUANTISED_TYPES.values()


def layers_of(model: Decoder) -> list[tuple[Layer, str, nn.Linear]]:
    """Every matrix of a model's layers, with its layer and its name there."""
    layers = [layer for layer in model.layers if isinstance(layer, Layer)]
    return [(layer, name, getattr(layer, name)) for layer in layers for name in MATRICES]


def narrowed(model: Decoder, form: str) -> Decoder:
    narrow_layers(model, form)
    return model


def widened(model: Decoder) -> Decoder:
    """A copy with plain linear layers of the numbers that the weights stand for."""
    wide = deepcopy(model)
    for layer, name, linear in layers_of(wide):
        assert isinstance(linear, WeightOnlyLinear)
        plain = nn.Linear(linear.in_features, linear.out_features, bias=linear.bias is not None)
        plain.weight, plain.bias = nn.Parameter(linear.widened()), linear.bias
        setattr(layer, name, plain)
    return wide


@pytest.mark.parametrize(
    ("family", "form"),
    [
        *((family, "int8") for family in FAMILIES),
        ("llamagen", "fp8"),
        ("chameleon", "int8/16"),
        ("learnt", "int8/16"),
        ("shared keys", "half"),
    ],
)
def test_passes_are_those_of_the_numbers_that_the_weights_stand_for(family: str, form: str) -> None:
    model = narrowed(model_of(FAMILIES[family]), form)
    tree_pass_is_the_model_s(model)
    if not model.config.drafter:
        condition_is_taken_in_as_the_model_does(model)


NUMBERS = st.one_of(st.sampled_from([0.0, -0.0, 1.0, -1.0, 448.0, 127.5, 1e-30]), st.floats(-1e4, 1e4, width=32))


@settings(max_examples=60)
@given(
    rows=st.integers(1, 6).flatmap(
        lambda width: st.lists(st.lists(NUMBERS, min_size=width, max_size=width), min_size=1)
    ),
    kind=st.sampled_from([INT8, FP8]),
    group_size=st.sampled_from([None, 2, 4]),
)
def test_each_number_is_rounded_to_the_nearest_that_its_group_has(
    rows: list[list[float]], kind: torch.dtype, group_size: int | None
) -> None:
    weight = torch.tensor(rows, dtype=torch.float32)
    every = (
        torch.arange(-127, 128, dtype=torch.int8) if kind == INT8 else torch.arange(256, dtype=torch.uint8).view(FP8)
    )
    numbers = every.double()[every.double().isfinite()]
    steps, scale = quantised(weight, kind, group_size)
    wide = WeightOnlyLinear(steps, scale, None).widened()
    size = group_size or weight.shape[1]
    assert scale.shape == (len(rows), -(-weight.shape[1] // size))
    for group, (part, rounded) in enumerate(zip(weight.split(size, 1), wide.split(size, 1), strict=True)):
        for row, factor, got in zip(part.double(), scale[:, group].double(), rounded.double(), strict=True):
            nearest = (row[:, None] - numbers * factor).abs().amin(dim=1)
            assert ((got - row).abs() <= nearest + 1e-6 * row.abs().max()).all()
            largest = row.abs().argmax()
            assert got[largest] == pytest.approx(row[largest].item(), rel=1e-6, abs=1e-36)
    assert (wide[weight == 0] == 0).all()


def one_product(kind: int, lines: int, groups: int, dtype: torch.dtype = torch.float32) -> tuple[Tensor, Tensor]:
    """A product by the kernel and by PyTorch in float64, with scales that differ by a factor of 50."""
    generator = torch.Generator().manual_seed(lines)
    width, columns = 100, 36
    steps = torch.randint(-127, 128, (columns, width), generator=generator).to(INT8)
    scale = (0.02 + torch.rand(columns, groups, generator=generator) ** 3) / 500
    hidden = torch.randn(1, lines, width, generator=generator).to(dtype)
    wide = steps.double() * scale.double().repeat_interleave(-(-width // groups) if groups < 4 else 32, 1)[:, :width]
    expected = hidden.double() @ wide.T
    out = torch.zeros(1, lines, columns // (2 if kind == GATE.value else 1), dtype=dtype)
    product(hidden, None, steps, None, out, kind, weight_scale=scale)
    if kind == GATE.value:
        gate, up = expected.chunk(2, dim=-1)
        expected = nn.functional.silu(gate) * up
    return out.double(), expected


@pytest.mark.parametrize("kind", [ADD.value, GATE.value])
@pytest.mark.parametrize(("lines", "groups"), [(1, 1), (40, 1), (3, 4), (40, 4)])
def test_a_product_by_scaled_weights_is_pytorch_s(kind: int, lines: int, groups: int) -> None:
    actual, expected = one_product(kind, lines, groups)
    torch.testing.assert_close(actual, expected, rtol=2e-5, atol=2e-5)


@pytest.mark.parametrize("kind", [ADD.value, GATE.value])
def test_in_half_precision_only_the_sums_are_scaled(kind: int) -> None:
    """Scaled weights of half precision would differ from those of the file; sums are rounded once before a gate."""
    actual, expected = one_product(kind, 3, 1, torch.float16)
    torch.testing.assert_close(actual, expected, rtol=2**-11 if kind == ADD.value else 2**-9, atol=1e-4)


def test_a_layer_keeps_its_numbers_where_it_is_moved() -> None:
    layer = WeightOnlyLinear(*quantised(torch.randn(5, 8), FP8), torch.zeros(5))
    before = layer.widened()
    moved = nn.Sequential(layer).to("cpu", torch.float16)[0]
    assert (moved.weight.dtype, moved.scale.dtype, moved.bias.dtype) == (FP8, torch.float32, torch.float16)
    assert torch.equal(moved.widened(), before)


BUGS = {
    "one scale for all": ("sums *= tl.load(scale + column", "sums *= tl.load(scale + 0 * column"),
    "no scales": ("if GROUP_SIZE == -1", "if GROUP_SIZE == -9"),
    "the first half's scales": ("passed *= tl.load(scale + second + column", "passed *= tl.load(scale + column"),
    "the first block's scales": ("(place // GROUP_SIZE)", "(0 * place)"),
    "the first half's groups": ("here, scale, second + column, in_columns", "here, scale, column, in_columns"),
}


@pytest.mark.parametrize("bug", BUGS)
def test_a_wrong_scale_is_seen(bug: str) -> None:
    def right() -> bool:
        for kind in (ADD.value, GATE.value):
            for groups in (1, 4):
                actual, expected = one_product(kind, 3, groups)
                if not torch.allclose(actual, expected, rtol=2e-5, atol=2e-5):
                    return False
        return True

    assert right()
    with planted("layers", *BUGS[bug]):
        assert not right()


@pytest.mark.parametrize("quantization", QUANTISED_TYPES)
def test_a_decode_is_that_of_the_numbers_that_the_weights_stand_for(quantization: str) -> None:
    """A quantised target is a target of its own: its logits are not those of the one that it was made from."""
    config = replace(FAMILIES["llamagen"], prefix=1)
    target, drafter = model_of(config), model_of(replace(FAMILIES["drafter"], prefix=1))
    how = TreeForm(
        RULES["point"].make(), SamplingParams(), policy=POLICIES["eagle2"].make(depth=2, top_k=2, total_tokens=4)
    )

    def drawn(target: Decoder, drafter: Decoder) -> list[list[int]]:
        runner = DeviceRunner(DecoderForward(target, 1), DecoderForward(drafter, 1), how, Grid(2, 4), 1, 2, CPU)
        conditions = target.embed(torch.tensor([[12], [13]]), None)
        runner.begin(conditions, [3, 4], [0, 1], None)
        return [image.tokens.tolist() for image in runner.finish(2)]

    before = passed(target)
    for one in (target, drafter):
        quantise_layers(one, QUANTISED_TYPES[quantization])
    assert drawn(target, drafter) == drawn(widened(target), widened(drafter))
    assert (passed(target) - before).abs().max() > 1e-3


@pytest.mark.parametrize("family", ["llamagen", "learnt", "shared keys"])
@pytest.mark.parametrize("quantization", [None, "int8", "fp8"])
def test_weights_are_read_without_widening_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, family: str, quantization: Quantization | None
) -> None:
    forms = {
        "groups": GraphFormat(eight_bits=True),
        "rows": GraphFormat(stored="fp16", scaled=True),
        "half": GraphFormat(stored="fp16"),
    }
    monkeypatch.setattr(decoder_weights, "_LEAST_SCALED", 4096)
    model = model_of(replace(FAMILIES[family], dim=64, hidden=64, head_dim=16))
    with torch.no_grad():
        for _, _, linear in layers_of(model):
            linear.weight *= 0.3
    round_to_scaled_rows(model)
    for form, graph_format in forms.items():
        folder = tmp_path / form
        folder.mkdir()
        decoder = written(model, folder, graph_format)._replace(quantization=quantization)
        narrow, wide = read_decoder(decoder, CPU, narrow=True), read_decoder(decoder, CPU)
        numbers = 0
        for (_, name, linear), (_, _, plain) in zip(layers_of(narrow), layers_of(wide), strict=True):
            if family == "learnt" and name == "qkv" and quantization is None:
                assert type(linear) is nn.Linear, "its queries are stored with another scale"
                continue
            assert isinstance(linear, WeightOnlyLinear)
            stored = {"groups": INT8, "rows": INT8 if linear.weight.numel() >= 4096 else torch.float16}
            expected = QUANTISED_TYPES[quantization] if quantization else stored.get(form, torch.float16)
            assert linear.weight.dtype == expected, (form, name)
            assert torch.equal(linear.widened(), plain.weight)
            numbers += linear.weight.numel() * (4 - linear.weight.element_size())
        everything = decoder_bytes(decoder)
        assert everything + numbers == decoder_bytes(written(model, folder, GraphFormat())), form
        tree_pass_is_the_model_s(narrow)


def test_int8_weights_of_a_file_are_not_rounded_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(decoder_weights, "_LEAST_SCALED", 4096)
    model = model_of(replace(FAMILIES["llamagen"], dim=64, hidden=64))
    round_to_scaled_rows(model)
    decoder = written(model, tmp_path, GraphFormat(stored="fp16", scaled=True))._replace(quantization="int8")
    layer = read_decoder(decoder, CPU, narrow=True).layers[0]
    assert isinstance(layer, Layer)
    assert isinstance(layer.gate_up, WeightOnlyLinear)
    expected = scaled_rows(model.layers[0].gate_up.weight.detach().numpy())
    given_rows = ScaledRows(layer.gate_up.weight.numpy(), np.float16(layer.gate_up.scale.numpy()))
    for one, other in zip(given_rows, expected, strict=True):
        np.testing.assert_array_equal(one, other)


def test_weights_that_are_not_finite_are_not_quantised(tmp_path: Path) -> None:
    model = model_of(FAMILIES["llamagen"])
    with torch.no_grad():
        model.layers[1].down.weight[0, 0] = float("nan")
    decoder = written(model, tmp_path, GraphFormat())._replace(quantization="fp8")
    with pytest.raises(
        EngineError, match=r"layers\.1\.down: expected finite weights to quantise, got infinity or NaN; export"
    ):
        read_decoder(decoder, CPU, narrow=True)


def test_loops_of_their_own_get_the_target_in_its_precision() -> None:
    model = model_of(FAMILIES["llamagen"])
    encoder = ConditionEncoder(model.config)
    assert DeviceModels(DecoderForward(model, 1), None, encoder, CPU).module is model
    quantise_layers(model, INT8)
    read = DeviceModels(DecoderForward(model, 1), None, encoder, CPU, lambda: widened(model)).module
    assert all(type(linear) is nn.Linear for _, _, linear in layers_of(read))


def test_quantised_weights_need_pytorch_s_passes_and_fp8_a_gpu_that_has_it(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(
        EngineError, match=r"--quantization int8: expected --forward torch, .* got onnx; leave one of them"
    ):
        check_forward("onnx", CPU, "int8")
    gpu = SimpleNamespace(type="cuda")
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "an A100")
    for capability, refused in (((8, 0), True), ((8, 9), False), ((9, 0), False)):
        monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device, one=capability: one)
        check_forward("torch", gpu, "int8")
        if refused:
            with pytest.raises(
                EngineError, match=r"expected a GPU of compute capability 8\.9 or newer, got an A100; use"
            ):
                check_forward("torch", gpu, "fp8")
        else:
            check_forward("torch", gpu, "fp8")


def test_a_quantised_target_has_a_name_of_its_own() -> None:
    plain, rounded = (
        Pipeline.open(resolution=64, backend="device", context=EngineContext(quantization=one))
        for one in (None, "int8")
    )
    assert plain.fingerprint() | {"quantization": "int8"} == rounded.fingerprint() != plain.fingerprint()
    assert (plain.title(), rounded.title()) == ("64 px", "64 px, int8 weights")
    served = [
        ServedModels.open_folder(FOLDER, 64, None, "device", context=EngineContext(quantization=one)).name
        for one in (None, "fp8")
    ]
    assert served == ["textured-scenes", "textured-scenes-fp8"]


def test_every_decoder_of_a_quantised_pipeline_is_quantised() -> None:
    pipeline = Pipeline.open(resolution=128, backend="device", context=EngineContext(quantization="int8"))
    drafter = pipeline.loaded_drafter
    assert drafter is not None
    decoders = [pipeline.high.decoder, drafter.decoder, LowFiles.of(pipeline, 2, "latent", 1).target]
    assert [one.quantization for one in decoders] == ["int8"] * 3


def test_only_the_device_takes_quantised_weights() -> None:
    with pytest.raises(EngineError, match=r"quantization: expected backend 'device', whose kernels .*, got 'cpu'"):
        Pipeline.open(resolution=64, context=EngineContext(quantization="int8"))
    with pytest.raises(EngineError, match="quantization must be int8, fp8 or None, got 'int4'"):
        EngineContext(quantization="int4")  # type: ignore[arg-type]


@pytest.mark.parametrize(("quantization", "shares"), [(None, (1, 1)), ("int8", (0.25, 1.25))])
def test_the_memory_estimate_counts_a_second_target_for_an_eager_loop(
    tmp_path: Path, quantization: Quantization | None, shares: tuple[float, float]
) -> None:
    """Where the device's weights are narrow; the target's matrices are nearly all of it."""
    model = model_of(replace(FAMILIES["llamagen"], dim=64, hidden=512))
    decoder = written(model, tmp_path, GraphFormat())._replace(quantization=quantization)
    whole = decoder_bytes(decoder, narrow=False)
    folder = FolderModels(decoder, None)
    assert [folder.weight_bytes(True, eager) / whole for eager in (False, True)] == pytest.approx(shares, rel=0.1)
    assert folder.weight_bytes(False, False) == whole
    assert folder.weight_bytes(False, True) == 2 * whole

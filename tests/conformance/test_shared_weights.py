"""Graphs of several grids on one file of weights: the same places, and refusals of what would not be exact."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest
import torch
from safetensors.numpy import load_file

from tests.models.tiny import tiny_target
from underpaint.artifacts.scaled_rows import ScaledRows, scaled_rows
from underpaint.export.decoders import GraphFormat, export_shared_drafter, write_graphs
from underpaint.export.graph import GraphWriter
from underpaint.export.store import Origin
from underpaint.export.weight_file import WeightFile, header_room
from underpaint.models.decoder import Decoder
from underpaint.models.layers import Layer
from underpaint.models.text import new_drafter, with_condition_table
from underpaint.runtime.device.weights import StoredWeights, read_decoder
from underpaint.runtime.engines.config_only import load_config_only
from underpaint.runtime.engines.context import EngineContext, open_session
from underpaint.training.grids import on_grid
from underpaint.zoo.load import Located

FORM = GraphFormat()


def places(path: Path) -> dict[str, dict[str, str]]:
    graph = onnx.load(path, load_external_data=False).graph
    return {
        one.name: {entry.key: entry.value for entry in one.external_data}
        for one in graph.initializer
        if one.data_location == onnx.TensorProto.EXTERNAL
    }


def test_two_grids_point_at_the_same_places(tmp_path: Path) -> None:
    target = tiny_target()
    decoders = {tmp_path / f"{grid}.onnx": with_condition_table(on_grid(target, grid)) for grid in (4, 2)}
    write_graphs(decoders, FORM, tmp_path / "both.safetensors")
    low, high = places(tmp_path / "2.onnx"), places(tmp_path / "4.onnx")
    assert low == high
    assert {place["location"] for place in low.values()} == {"both.safetensors"}
    assert len({place["offset"] for place in low.values()}) == len(low) > 10


def test_other_numbers_under_one_name_are_refused(tmp_path: Path) -> None:
    decoders = {tmp_path / f"{seed}.onnx": with_condition_table(tiny_target(seed)) for seed in (0, 1)}
    with pytest.raises(ValueError, match=r"both.safetensors: '.*' is there with other numbers"):
        write_graphs(decoders, FORM, tmp_path / "both.safetensors")
    with WeightFile(tmp_path / "w.safetensors", header_room("abc")) as file:
        first, _ = file.add("a", np.ones(3, np.float32)), file.add("b", np.zeros(2, np.float32))
        assert file.add("a", np.ones(3, np.float32)) == first
        for other in (np.ones(3, np.float16), np.ones((3, 1), np.float32), np.zeros(3, np.float32)):
            with pytest.raises(ValueError, match="'a' is there with other numbers"):
                file.add("a", other)
        third = file.add("c", np.full(4, 2, np.float32))
        assert third.offset > first.offset


def test_only_a_rounded_model_is_stored_in_8_bits(tmp_path: Path) -> None:
    form = replace(FORM, stored="fp16", scaled=True)
    with pytest.raises(ValueError, match=r"expected numbers of 8 bits with a scale a row, or of fp16; round the model"):
        write_graphs({tmp_path / "t.onnx": with_condition_table(tiny_target())}, form, tmp_path / "t.safetensors")
    with pytest.raises(ValueError, match="expected --precision fp32"):
        GraphFormat("fp16", scaled=True)


@pytest.mark.parametrize("depth", [16, 64, 100, 480])
def test_products_in_8_bits_are_of_the_steps_that_are_stored(tmp_path: Path, depth: int) -> None:
    """Of values that 8 bits hold, a block at a time, nothing is rounded: any other step or scale would show."""
    rng = np.random.default_rng(depth)
    rows = ScaledRows(
        rng.integers(-127, 128, (depth, 40), dtype=np.int8), (2.0 ** rng.integers(-6, 3, (1, 40))).astype(np.float16)
    )
    values = rng.integers(-127, 128, (3, depth)).astype(np.float32)
    values[:, ::16] = 127
    with WeightFile(tmp_path / "g.safetensors", header_room(["matrix"])) as file:
        graph = GraphWriter("g", {"matrix": lambda: rows}, "fp32", file, int8_products=True)
        product = graph.product(graph.input("value", "float32", ("R", depth)), "matrix")
        graph.output(graph.node("Identity", [product], "product"), "float32", ("R", 40))
        graph.write(tmp_path / "g.onnx")
    assert sum(node.op_type == "MatMulNBits" for node in onnx.load(tmp_path / "g.onnx").graph.node) == 1
    session = open_session(tmp_path / "g.onnx", EngineContext(threads=1))
    (actual,) = session.run(None, {"value": values})
    expected = values.astype(np.float64) @ rows.widened().astype(np.float64)
    np.testing.assert_allclose(actual, expected, rtol=1e-6, atol=1e-6 * np.abs(expected).max())


@pytest.mark.parametrize("axis", [0, 1])
def test_a_session_multiplies_by_the_very_numbers_that_are_stood_for(tmp_path: Path, axis: int) -> None:
    values = np.random.default_rng(3).standard_normal((24, 40)).astype(np.float32)
    rows: ScaledRows = scaled_rows(values, axis)
    with WeightFile(tmp_path / "g.safetensors", header_room(["matrix"])) as file:
        graph = GraphWriter("g", {"matrix": lambda: rows}, "fp32", file)
        product = graph.product(graph.input("value", "float32", ("R", 24)), "matrix")
        for name, value, size in (("product", product, "R"), ("widened", graph.weight("matrix"), 24)):
            graph.node("Identity", [value], name)
            graph.output(name, "float32", (size, 40))
        graph.write(tmp_path / "g.onnx")
    session = open_session(tmp_path / "g.onnx", EngineContext(threads=1))
    inputs = values[:, :24].T.copy()
    widened, product = session.run(["widened", "product"], {"value": inputs})
    np.testing.assert_array_equal(widened, rows.widened())
    np.testing.assert_allclose(product, inputs @ rows.widened(), rtol=1e-4, atol=1e-4)


def rounded() -> Decoder:
    """A decoder whose matrices are those of 8 bits with a scale a row."""
    decoder = with_condition_table(tiny_target())
    for name, value in decoder.named_parameters():
        if value.ndim > 1 and "conditions" not in name:
            value.data = torch.from_numpy(scaled_rows(value.detach().numpy()).widened())
    return decoder


def test_an_engine_that_would_multiply_in_8_bits_is_given_the_widened_numbers(tmp_path: Path) -> None:
    decoder, path = rounded(), tmp_path / "t.safetensors"
    write_graphs({tmp_path / "t.onnx": decoder}, replace(FORM, stored="fp16", scaled=True), path)
    stored, names = StoredWeights(path), ("layers.0.down", "head", "norm")
    assert load_file(path)["layers.0.down"].dtype == np.int8
    kinds = dict.fromkeys(names, torch.float32) | {"not a weight": torch.bool}
    tensors = stored.on_device(kinds, decoder.config, torch.device("cpu"))
    layer = decoder.layers[0]
    assert isinstance(layer, Layer)
    assert decoder.norm is not None
    for name, expected in zip(names, (layer.down.weight.T, decoder.head.weight.T, decoder.norm.weight), strict=True):
        assert tensors[name].shape == stored.shape(name, decoder.config)
        torch.testing.assert_close(tensors[name], expected.detach(), rtol=0, atol=2e-4 if name == "norm" else 0)
    assert tensors.keys() == set(names)


@pytest.mark.parametrize("eight_bits", [True, False])
def test_a_drafter_keeps_the_codes_of_its_rounded_target(tmp_path: Path, eight_bits: bool) -> None:
    target = rounded()
    drafter, origin = new_drafter(target), Origin("random weights", "a test")
    (manifest,) = export_shared_drafter(drafter, [8 * target.config.grid_side], 8, tmp_path, origin, eight_bits)
    assert manifest.weights is not None
    assert manifest.weights.matrices == "scaled_rows"
    stored = load_file(tmp_path / manifest.weights.file)
    assert (stored["embedding"].dtype, stored["fc_feature"].dtype) == (np.int8, np.float16)
    assert stored["head"].dtype == (np.uint8 if eight_bits else np.int8)
    located = Located(tmp_path / manifest.file, manifest)
    read = read_decoder(load_config_only("", located), torch.device("cpu"))
    torch.testing.assert_close(read.codes.weight, target.codes.weight, rtol=0, atol=0)
    torch.testing.assert_close(read.head.weight, target.head.weight, rtol=0, atol=0.01 if eight_bits else 0)

"""What half-precision graphs compute in float32, and that it is they that are compared with torch."""

from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import pytest
from onnx import TensorProto

from tests.published.checkpoints import HEADS, SIDE, save_llamagen
from underpaint.artifacts import decoder_graph as names
from underpaint.export.checkpoint import Request, export_checkpoint
from underpaint.export.decoder_parity import ParityEngine, dense, graph_of, prepare, take_condition
from underpaint.export.decoders import GraphFormat, write_graph
from underpaint.export.graph import GraphWriter
from underpaint.export.parity import MOST, errors
from underpaint.export.store import ParityError
from underpaint.export.verify import verify
from underpaint.models.decoder import Decoder
from underpaint.models.published.options import LoadOptions
from underpaint.runtime.engines.context import EngineContext
from underpaint.runtime.engines.pass_inputs import causal
from underpaint.zoo.load import manifest

TINY = LoadOptions(heads=HEADS, grid_side=SIDE)
HALVES = {"fp16": np.dtype(np.float16), "bf16": np.dtype(ml_dtypes.bfloat16)}
ONE_THREAD = EngineContext(threads=1)


def request(work: Path, precision: str) -> Request:
    save_llamagen(work / "c2i.pt", captions=False)
    return Request("llamagen-c2i", work / "c2i.pt", precision, TINY)  # type: ignore[arg-type]


def written(work: Path, precision: str) -> tuple[Path, Decoder]:
    """A graph in half precision, and its module in float32."""
    decoder = request(work, precision).loaded().decoder
    assert decoder is not None
    write_graph(decoder, GraphFormat(precision), work / "target.onnx")  # type: ignore[arg-type]
    return work / "target.onnx", decoder.float()


class Types:
    """Who makes the values of a graph, and of which type they are."""

    def __init__(self, path: Path) -> None:
        graph = onnx.shape_inference.infer_shapes(onnx.load(path, load_external_data=False)).graph
        self.nodes = list(graph.node)
        self.maker = {name: node for node in graph.node for name in node.output}
        self.kinds = {tensor.name: tensor.data_type for tensor in graph.initializer}
        for value in (*graph.input, *graph.value_info, *graph.output):
            self.kinds[value.name] = value.type.tensor_type.elem_type

    def products_behind(self, name: str) -> list[Any]:
        """The products that the sums, joined parts and shapes of `name` are made of."""
        node = self.maker.get(name)
        if node is None:
            return []
        if node.op_type == "MatMul":
            return [node]
        assert node.op_type in ("Add", "Concat", "Reshape", "Unsqueeze"), node.op_type
        read = node.input[:1] if node.op_type in ("Reshape", "Unsqueeze") else node.input
        return [product for operand in read for product in self.products_behind(operand)]

    def are_float32(self, values: Any) -> bool:
        return all(self.kinds[name] == TensorProto.FLOAT for name in values)


@pytest.mark.parametrize("precision", HALVES)
def test_scores_logits_and_turns_are_computed_in_float32(tmp_path: Path, precision: str) -> None:
    types = Types(written(tmp_path, precision)[0])
    scores = [node.input[0] for node in types.nodes if node.op_type == "Softmax"]
    turns = [node for node in types.nodes if node.op_type == "RotaryEmbedding"]
    assert len(scores) == len(turns) > 0
    for name in (*scores, names.LOGITS):
        products = types.products_behind(name)
        assert len(products) == (1 if name == names.LOGITS else 2), "the cache's scores and the new positions'"
        assert all(types.are_float32(node.input) for node in products)
    assert all(types.are_float32(node.input[:3]) for node in turns)
    cache_type = TensorProto.FLOAT16 if precision == "fp16" else TensorProto.BFLOAT16
    assert {types.kinds[names.new_key(0)], types.kinds[names.past_value(0)]} == {cache_type}


@pytest.mark.parametrize("precision", HALVES)
def test_logits_are_not_rounded_and_caches_are(tmp_path: Path, precision: str) -> None:
    path, decoder = written(tmp_path, precision)
    engine = ParityEngine(graph_of(path, "bf16", decoder.config), 2)
    out, half = engine.run(np.arange(5), np.arange(5), causal(5)), HALVES[precision]
    for cached in (engine.memory.new_keys, engine.memory.new_values, out.features):
        np.testing.assert_array_equal(cached, cached.astype(half).astype(np.float32))
    assert (out.logits == out.logits.astype(half).astype(np.float32)).mean() < 0.1


def test_a_rounded_graph_rounds_as_onnx_runtime_does(tmp_path: Path) -> None:
    """In float16, which ONNX Runtime runs by itself; float32 lies further off than the two from each other."""
    path, decoder = written(tmp_path, "fp16")
    case, tokens = prepare(path, "fp16", decoder, None, 0), np.arange(16)
    logits = []
    for graph in (case.graph, graph_of(path, "bf16", decoder.config)):
        engine = ParityEngine(graph, 2)
        take_condition(engine, case.prefix)
        engine.cache.commit(slice(None))
        logits.append(engine.run(tokens, tokens, causal(16)).logits)
    assert 0 < errors(logits[1], dense(case, tokens, 2).logits(slice(1, None))).largest < 0.005
    assert np.abs(logits[0] - logits[1]).max() / np.abs(logits[0]).max() < 0.005


def test_the_bfloat16_graph_itself_is_compared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A mistake that a float32 graph of the same weights does not share: a rounding to 4 bits on the way."""
    export_request, narrow = request(tmp_path, "bf16"), GraphWriter.narrow
    export_checkpoint(export_request, tmp_path / "right")
    parity = manifest("target", tmp_path / "right").parity
    assert 1e-3 < max(parity.values()) < MOST["bf16"]
    copied, itself = verify(tmp_path / "right", True, 0)
    assert (copied.float32_copy, copied.allowed) == (True, MOST["fp32"])
    assert (itself.float32_copy, itself.allowed) == (False, MOST["bf16"])
    assert max(copied.report.worst().values()) < 1e-4 < 1e-3 < max(itself.report.worst().values())
    assert "its weights in a float32 graph" in copied.lines()[0]
    assert not any("greedy" in line for line in copied.lines())
    assert any("greedy decoding" in line for line in itself.lines())

    def coarse(graph: GraphWriter, value: str) -> str:
        if graph.precision == "bf16":
            value = graph.node("Cast", [value], to=TensorProto.FLOAT8E4M3FN)
            value = graph.node("Cast", [value], to=TensorProto.FLOAT)
        return narrow(graph, value)

    monkeypatch.setattr(GraphWriter, "narrow", coarse)
    with pytest.raises(ParityError, match=r"of at most 0\.1, got"):  # the copy in float32, compared first, passes
        export_checkpoint(export_request, tmp_path / "wrong")


def test_a_small_mistake_is_told_from_bfloat16s_own_rounding(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The graph itself may differ by a tenth; the same mistake in its float32 copy is found."""
    export_request, turns = request(tmp_path, "bf16"), GraphWriter.widen

    def shrunk(graph: GraphWriter, value: str) -> str:
        return graph.node("Mul", [turns(graph, value), graph.constant(np.array(0.999, dtype=np.float32))])

    monkeypatch.setattr(GraphWriter, "widen", shrunk)
    with pytest.raises(ParityError, match=r"of at most 0\.0001"):
        export_checkpoint(export_request, tmp_path / "wrong")


@pytest.mark.parametrize("kind", HALVES.values(), ids=HALVES)
def test_tensor_cores_round_no_half_precision_number(kind: np.dtype[Any]) -> None:
    """So engines of half precision may multiply in TF32, which keeps 10 bits of a fraction and all of an exponent."""
    every = np.arange(1 << 16, dtype=np.uint16).view(kind).astype(np.float32)
    finite = every[np.isfinite(every)]
    assert len(finite) > 60_000
    assert not (finite.view(np.uint32) & np.uint32(0x1FFF)).any()

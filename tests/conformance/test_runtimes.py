"""The graphs that ship, and those of every precision, against what the runtimes document."""

from pathlib import Path

import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper

from tests.conformance.runtimes import CPU, CUDA, RUNTIMES, TENSORRT, least_version, undocumented
from underpaint.export.device_engines import bare_graphs
from underpaint.export.graph import OPSET
from underpaint.runtime.engines.config_only import load_config_only
from underpaint.zoo.load import FOLDER, locate

SHIPPED = sorted(FOLDER.glob("*.onnx"))
DECODERS = [path for path in SHIPPED if path.name.startswith(("target", "drafter"))]


def read(path: Path) -> onnx.ModelProto:
    return onnx.load(path, load_external_data=False)


def model_of(version: int, *names: str, domain: str = "") -> onnx.ModelProto:
    value = helper.make_tensor_value_info("x", TensorProto.FLOAT, [1])
    nodes = [helper.make_node(name, ["x"], [f"y{index}"], domain=domain) for index, name in enumerate(names)]
    graph = helper.make_graph(nodes, "g", [value], [])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", version)])


@pytest.mark.parametrize("path", SHIPPED, ids=lambda path: path.stem)
def test_shipped_graphs_have_what_the_runtimes_document(path: Path) -> None:
    model, decoder = read(path), path in DECODERS
    versions = ["1.23", "1.23", "10.15"] if decoder else ["1.17", "1.17", "10.0"]
    assert [least_version(model, runtime) for runtime in RUNTIMES] == versions
    assert not undocumented(model, CPU)
    # Branches and loops, which draft and sample, have definitions of opset 23 that the CUDA provider does not list.
    cpu_operators = {"Equal-19", "Identity-23", "If-23", "Loop-23", "Pad-23"} if decoder else set()
    assert undocumented(model, CUDA) <= cpu_operators
    if not decoder:
        assert not undocumented(model, TENSORRT)


@pytest.mark.parametrize("name", ["target64", "target128", "drafter64", "drafter128"])
def test_graphs_that_plans_are_built_from_are_documented(name: str) -> None:
    decoder = load_config_only(name, locate(name, name.rstrip("0123456789"), FOLDER))
    for content in bare_graphs(decoder, places=64):
        model = onnx.load_from_string(content)
        assert not undocumented(model, TENSORRT)
        assert least_version(model, TENSORRT) == "10.15"
        attention = [node for node in model.graph.node if node.op_type == "Attention"]
        assert all(len(node.input) == 4 for node in attention), "nor is an input that NVIDIA's parser leaves out"


def test_half_precision_runs_on_every_gpu_runtime(halves: Path) -> None:
    for name in ("target", "drafter"):
        model = read(halves / "out" / f"{name}.onnx")
        assert not undocumented(model, CUDA) | undocumented(model, TENSORRT)
        assert [least_version(model, runtime) for runtime in RUNTIMES] == ["1.23", "1.23", "10.15"]
    # A float32 target has a branch, which the CUDA provider does not list.
    assert undocumented(read(halves / "reference" / "target.onnx"), CUDA) == {"Equal-19", "If-23"}


def test_what_is_not_documented_is_named() -> None:
    model = model_of(20, "Cast", "Compress", "BitShift")
    assert undocumented(model, CUDA) == undocumented(model, TENSORRT) == {"Compress-11", "BitShift-11"}
    assert undocumented(model_of(23, "FusedThing", domain="com.microsoft"), CPU) == {"com.microsoft.FusedThing"}
    with pytest.raises(ValueError, match="TensorRT: expected opset 24 at most, got 25"):
        least_version(model_of(25, "Relu"), TENSORRT)


def test_the_installed_runtime_is_new_enough() -> None:
    """Of the extras `cpu` and `gpu` too, which ask for the version that is tested here."""
    least = tuple(int(part) for part in CPU.least[OPSET].split("."))
    assert tuple(int(part) for part in onnxruntime.__version__.split(".")[:2]) >= least

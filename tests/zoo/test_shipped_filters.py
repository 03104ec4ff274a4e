"""The filters inside the shipped graphs are those that the exporter writes today."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import onnx
import pytest
from onnx import numpy_helper

from underpaint.artifacts.decoder_graph import TOP_P
from underpaint.export.graph import GraphWriter
from underpaint.export.probabilities import write_probs
from underpaint.zoo.load import FOLDER

VOCAB = 4096
SHIPPED = {"target64": 1, "target128": 1, "target64_int8": 1, "drafter64": 2, "drafter128": 2}
"""How often each graph filters: a drafter does at its root and at each level of a tree."""


def filters(graph: Any, constants: dict[str, Any]) -> Iterator[list[Any]]:
    """The branches that are taken where top-p is below 1, each as its nodes, whatever their values are named."""
    constants = constants | written(graph)
    comparisons = {node.output[0] for node in graph.node if node.op_type == "Less" and node.input[0] == TOP_P}
    for node in graph.node:
        for attribute in node.attribute:
            if attribute.type != onnx.AttributeProto.GRAPH:
                continue
            if node.op_type == "If" and node.input[0] in comparisons and attribute.name == "then_branch":
                yield steps(attribute.g, constants)
            yield from filters(attribute.g, constants)


def written(graph: Any) -> dict[str, Any]:
    """Constants by name; weights, which lie in files of their own, are none."""
    return {one.name: numpy_helper.to_array(one).tolist() for one in graph.initializer if not one.external_data}


def steps(graph: Any, constants: dict[str, Any]) -> list[Any]:
    """Each node's kind, attributes and inputs: constants by value, top-p by name, the rest by turn of appearance."""
    constants = constants | written(graph)
    turns: dict[str, str] = {}

    def named(value: str) -> Any:
        if value in constants:
            return constants[value]
        return value if value == TOP_P else turns.setdefault(value, f"value {len(turns)}")

    operations = []
    for node in graph.node:
        attributes = sorted((one.name, str(onnx.helper.get_attribute_value(one))) for one in node.attribute)
        operations.append(
            (node.op_type, attributes, [named(each) for each in node.input], [named(each) for each in node.output])
        )
    return operations


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Filters of a graph of distributions alone."""
    path = tmp_path_factory.mktemp("filters") / "distributions.onnx"
    graph = GraphWriter("probabilities")
    graph.input("logits", "float32", ["B", "T", VOCAB])
    write_probs(graph, VOCAB)
    graph.write(path)
    (branch,) = filters(onnx.load(path).graph, {})
    return branch


@pytest.mark.parametrize("name", SHIPPED)
def test_a_shipped_graph_filters_as_the_exporter_writes(name: str, exported: Any) -> None:
    graph = onnx.load(FOLDER / f"{name}.onnx", load_external_data=False).graph
    assert list(filters(graph, {})) == [exported] * SHIPPED[name]


def test_another_filter_would_be_seen(exported: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    node = GraphWriter.node

    def planted(graph: GraphWriter, kind: str, *inputs: object, **attributes: object) -> str:
        return node(graph, "Less" if kind == "LessOrEqual" else kind, *inputs, **attributes)  # type: ignore[arg-type]

    monkeypatch.setattr(GraphWriter, "node", planted)
    graph = GraphWriter("probabilities")
    graph.input("logits", "float32", ["B", "T", VOCAB])
    write_probs(graph, VOCAB)
    graph.write(tmp_path / "other.onnx")
    assert list(filters(onnx.load(tmp_path / "other.onnx").graph, {})) != [exported]

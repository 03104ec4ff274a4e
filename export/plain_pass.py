"""The plain pass within a graph: what engines that read no others' operators are built from."""

from pathlib import Path

import onnx

from underpaint.artifacts import decoder_graph as graph_names

_BEYOND = frozenset({graph_names.PROBS, graph_names.CHAIN_TOKENS, *graph_names.TREE_OUTPUTS})


def plain_pass(path: Path) -> bytes:
    """The graph at `path` without probabilities, chains and trees, and without what only they need.

    A graph that has none is given back as it is. Weights stay where they are, in the file beside it.
    """
    model = onnx.load(path, load_external_data=False)
    graph = model.graph
    if not any(output.name in _BEYOND for output in graph.output):
        return path.read_bytes()
    outputs = [output for output in graph.output if output.name not in _BEYOND]
    needed, nodes = {output.name for output in outputs}, []
    for node in reversed(graph.node):
        if needed & set(node.output):
            nodes.append(node)
            needed |= set(node.input)
    inputs = [given for given in graph.input if given.name in needed]
    tensors = [tensor for tensor in graph.initializer if tensor.name in needed]
    for field, left in (("node", nodes[::-1]), ("input", inputs), ("output", outputs), ("initializer", tensors)):
        graph.ClearField(field)
        getattr(graph, field).extend(left)
    content: bytes = model.SerializeToString(deterministic=True)
    return content

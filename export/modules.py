"""Exports torch modules with torch's own exporter: to ONNX, compared in ONNX Runtime, and stored."""

import logging
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np
import onnx
import torch
from onnx import TensorProto, helper, numpy_helper
from torch import Tensor, nn
from torch.export import Dim

from underpaint.artifacts.manifest import Manifest
from underpaint.export.graph import IR_VERSION
from underpaint.export.parity import compare_module
from underpaint.export.store import Origin, draft_manifest, store_onnx
from underpaint.runtime.engines.context import EngineContext

MOST: Final = 1e-4
"""Largest accepted difference from the torch module, in pixels of [-1, 1], class scores or logits."""
BATCH: Final = Dim("B", min=1, max=1024)
"""The free first dimension."""
_OPSET: Final = 20
_LARGE: Final = 64
"""Weights with fewer values stay in float32."""


def store_module(
    graph: onnx.ModelProto,
    name: str,
    kind: str,
    settings: Mapping[str, Any],
    folder: Path,
    origin: Origin,
    module: nn.Module,
    feed: str,
    cases: Mapping[str, Tensor],
) -> Manifest:
    """Write `graph`, exported from `module`, if both agree on all `cases`; `feed` is the name of its input."""
    one_thread = EngineContext(threads=1)
    draft = draft_manifest(name, kind, origin, settings)
    return store_onnx(graph, draft, folder, lambda path: compare_module(module, feed, cases, path, one_thread), MOST)


def to_onnx(
    module: nn.Module, example: Tensor, feed: str, results: Sequence[str], free: Mapping[int, Any]
) -> onnx.ModelProto:
    """Export a module to an ONNX model whose input dimensions `free` may vary."""
    logging.getLogger("torch.onnx").setLevel(logging.ERROR)
    with torch.no_grad(), warnings.catch_warnings():  # no gradients are traced
        # The exporter of torch 2.13 uses deprecated parts of torch.
        warnings.simplefilter("ignore", FutureWarning)
        warnings.simplefilter("ignore", DeprecationWarning)
        program = torch.onnx.export(
            module,
            (example,),
            dynamo=True,
            opset_version=_OPSET,
            input_names=[feed],
            output_names=list(results),
            dynamic_shapes=(dict(free),),
            verbose=False,
            external_data=False,
            optimize=True,
        )
    if program is None:
        raise RuntimeError("torch.onnx.export returned no program")
    model = program.model_proto
    model.ir_version = min(model.ir_version, IR_VERSION)
    _strip(model)
    _store_halves(model)
    onnx.checker.check_model(model)
    return model


def _strip(model: onnx.ModelProto) -> None:
    """Remove the exporter's notes about the machine that it ran on."""
    del model.metadata_props[:]
    model.graph.doc_string = ""
    for node in model.graph.node:
        node.doc_string = ""
        del node.metadata_props[:]
    for value in (*model.graph.value_info, *model.graph.initializer, *model.graph.input, *model.graph.output):
        value.doc_string = ""
        if hasattr(value, "metadata_props"):
            del value.metadata_props[:]
    model.producer_name = "underpaint"


def _store_halves(model: onnx.ModelProto) -> None:
    """Store every weight that is exact in float16 as float16 with a widening Cast, which engines fold at load time."""
    casts = []
    for weight in list(model.graph.initializer):
        if weight.data_type != TensorProto.FLOAT:
            continue
        values = numpy_helper.to_array(weight)
        half = values.astype(np.float16)
        if values.size < _LARGE or not np.array_equal(half.astype(np.float32), values):
            continue
        name = weight.name
        weight.CopyFrom(numpy_helper.from_array(half, f"{name}.half"))
        casts.append(helper.make_node("Cast", [f"{name}.half"], [name], to=TensorProto.FLOAT))
    nodes = [*casts, *model.graph.node]
    del model.graph.node[:]
    model.graph.node.extend(nodes)

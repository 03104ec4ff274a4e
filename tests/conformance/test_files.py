"""Model files: what is missing, damaged or not what it says is named, and never half written."""

import json
from functools import partial
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from safetensors.numpy import load_file
from typer.testing import CliRunner

from tests.conformance.conftest import CONFIG, ORIGIN, WORDS, Models
from tests.one_grid import export_captioned_target
from underpaint.algos.rows import SamplingParams
from underpaint.artifacts import manifest
from underpaint.artifacts.manifest import ManifestError
from underpaint.cli.app import app
from underpaint.export.decoder_parity import compare
from underpaint.export.parity import Errors, Report
from underpaint.export.store import ParityError, draft_manifest, staged, store_onnx
from underpaint.models.text import CaptionedTarget, with_condition_table
from underpaint.runtime.engines.context import EngineContext, EngineError, bind, load_decoder, open_session
from underpaint.runtime.engines.engine import manifest_config
from underpaint.runtime.engines.target import EngineTarget
from underpaint.runtime.pipeline import Pipeline
from underpaint.zoo import load


@pytest.fixture
def folder(models: Models, tmp_path: Path) -> Path:
    """A copy of the models that a test may damage."""
    for name in ("target", "drafter"):
        for suffix in (".onnx", ".json", ".safetensors"):
            (tmp_path / f"{name}{suffix}").write_bytes((models.folder / f"{name}{suffix}").read_bytes())
    return tmp_path


def test_a_manifest_tells_what_the_file_is(models: Models) -> None:
    manifest = load.manifest("target", models.folder)
    assert manifest.kind == "target"
    assert manifest.shapes["tokens"] == ["B", "T"]
    assert manifest.shapes["past_key_0"] == ["B", 2, 16, "S"]
    assert manifest.settings["vocab_size"] == CONFIG.vocab_size
    assert set(manifest.parity) == {"random", "first_code", "last_code", "tree", "one_row"}
    assert max(manifest.parity.values()) < 1e-5
    assert load.names(models.folder) == ("drafter", "drafter_int8", "target")
    assert load.locate("target", "target", models.folder).path == models.folder / "target.onnx"
    assert not list(models.folder.glob(".*"))


def test_weights_are_stored_in_half_their_size(models: Models) -> None:
    stored = load_file(models.folder / "target.safetensors")
    matrices = [name for name in stored if name.endswith(("qkv", "out", "gate_up", "down", "head"))]
    assert len(matrices) == 4 * CONFIG.layers + 1
    assert {stored[name].dtype.name for name in matrices} == {"float16"}
    graph = onnx.load(models.folder / "target.onnx", load_external_data=False).graph
    external = [tensor.name for tensor in graph.initializer if tensor.data_location == onnx.TensorProto.EXTERNAL]
    assert set(external) == {name for name in stored if not name.startswith("_pad")}


def test_8_bit_matrices_are_smaller_and_compared(models: Models) -> None:
    whole, small = (load.manifest(name, models.folder) for name in ("drafter", "drafter_int8"))
    assert small.weights is not None
    assert whole.weights is not None
    assert small.weights.bytes < 1.2 * whole.weights.bytes, "scales of blocks weigh as much at this size"
    assert 1e-4 < max(small.parity.values()) < 0.1
    nodes = onnx.load(models.folder / small.file).graph.node
    assert sum(node.op_type == "MatMulNBits" for node in nodes) == 5, "a layer's four products, and the head's"
    floating = [node.input for node in nodes if node.op_type == "Gemm"]
    assert len(floating) == 1, "only the features' outliers are worth a product in floating point"
    assert floating[0][0] == next(node.output[0] for node in nodes if node.input[:1] == ["features"])


@pytest.mark.parametrize("file", ["target.onnx", "target.safetensors"])
@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda content: content[:-100], "cut short"),
        (lambda content: content[:-1] + bytes([content[-1] ^ 1]), "expected sha256"),
        (lambda content: b"", "expected \\d+ bytes, got 0"),
    ],
)
def test_a_damaged_file_is_refused(folder: Path, damage: object, message: str, file: str) -> None:
    path = folder / file
    path.write_bytes(damage(path.read_bytes()))  # type: ignore[operator]
    with pytest.raises(ManifestError, match=message):
        EngineTarget.open("target", SamplingParams(), folder)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            {"format": 1},
            "expected format 2, got 1: an older version wrote it; make the folder again: `underp",
        ),
        ({"weights": {"file": "absent.safetensors", "bytes": 1, "sha256": ""}}, "no model file at"),
        ({"weights": {"file": "absent.safetensors"}}, "missing setting"),
        ({"colour": "red"}, "unknown setting 'colour'"),
        ({"file": "absent.onnx"}, "no model file at"),
    ],
)
def test_a_manifest_of_another_kind_is_refused(folder: Path, change: dict[str, object], message: str) -> None:
    path = folder / "target.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | change))
    with pytest.raises(ManifestError, match=message):
        load.locate("target", "target", folder)


def test_a_manifest_that_is_no_json_is_refused(folder: Path) -> None:
    for content, message in (
        ("{", "expected JSON"),
        ("[]", "there is no model 'target'"),
        ('{"kind": "target", "sha256": ""}', "expected format 2, got none; make"),
        ('{"kind": "target", "sha256": "", "format": 2}', "missing setting"),
    ):
        (folder / "target.json").write_text(content)
        with pytest.raises(ManifestError, match=message):
            load.manifest("target", folder)


def test_unknown_names_and_wrong_kinds_suggest_the_right_ones(models: Models) -> None:
    with pytest.raises(ManifestError, match="did you mean 'target'"):
        load.locate("targett", "target", models.folder)
    with pytest.raises(ManifestError, match="is a drafter, expected a target"):
        EngineTarget.open("drafter", SamplingParams(), models.folder)
    with pytest.raises(ManifestError, match="no manifest"):
        manifest.read(models.folder / "nothing.json")
    settings = dict(load.manifest("target", models.folder).settings)
    del settings["heads"]
    with pytest.raises(EngineError, match="missing setting heads"):
        manifest_config(settings, "target")


def test_sessions_run_on_the_cpu_whatever_else_onnxruntime_has(models: Models, monkeypatch: pytest.MonkeyPatch) -> None:
    """As the wheel for GPUs lists them: caches lie in the host's memory, which a GPU would copy at every pass."""
    provider_lists: list[list[str]] = []
    real = onnxruntime.InferenceSession

    def opened(path: object, options: object, providers: list[str]) -> object:
        provider_lists.append(providers)
        return real(path, options, providers)

    monkeypatch.setattr(onnxruntime, "get_available_providers", lambda: ["CUDAExecutionProvider"])
    monkeypatch.setattr(onnxruntime, "InferenceSession", opened)
    assert open_session(models.folder / "target.onnx").get_providers() == ["CPUExecutionProvider"]
    load_decoder("target", "target", models.folder)
    assert provider_lists == [["CPUExecutionProvider"]] * 2
    with pytest.raises(
        EngineError, match=r"backend: expected one of cpu, tensorrt, tensorrt-rtx, cuda, .*, device, got 'gpu'"
    ):
        Pipeline.open(models.folder, backend="gpu")


def test_bad_sessions_are_named(tmp_path: Path) -> None:
    with pytest.raises(EngineError, match="no model file at"):
        open_session(tmp_path / "absent.onnx")
    (tmp_path / "text.onnx").write_text("not a model")
    with pytest.raises(EngineError, match="could not load it"):
        open_session(tmp_path / "text.onnx")
    with pytest.raises(EngineError, match="threads must be >= 1"):
        EngineContext(threads=0)
    with pytest.raises(EngineError, match="C-contiguous"):
        bind(None, "input", "tokens", np.zeros((4, 4)).T[:, 1:])


def test_nothing_is_written_where_parity_fails(models: Models, tmp_path: Path) -> None:
    draft = draft_manifest("target", "target", ORIGIN, {})
    for differences in ({"case": 1.0}, {"case": float("nan")}, {}):
        graph = onnx.load(models.folder / "target.onnx")
        with pytest.raises(ParityError, match="nothing was written"), staged(tmp_path / "out") as aside:
            store_onnx(graph, draft, aside, partial(_found, differences), 1e-4)
    assert not list(tmp_path.iterdir())


def _found(differences: dict[str, float], path: Path) -> Report:
    return Report({case: {"logits": Errors(difference, difference)} for case, difference in differences.items()})


def test_a_graph_of_other_weights_fails_parity(models: Models, tmp_path: Path) -> None:
    torch.manual_seed(6)
    other = CaptionedTarget(CONFIG, 12, WORDS).eval()
    torch.nn.init.normal_(other.decoder.head.weight)
    report = compare(models.folder / "target.onnx", "fp32", with_condition_table(other), None, greedy=False)
    assert min(report.worst().values()) > 1e-2


def test_weights_that_float16_cannot_hold_are_refused(tmp_path: Path) -> None:
    torch.manual_seed(6)
    target = CaptionedTarget(CONFIG, 12, WORDS).eval()
    with torch.no_grad():
        target.decoder.head.weight[0, 0] = 1e6
    with pytest.raises(ValueError, match=r"head\.weight: expected finite weights below 65504"):
        export_captioned_target("target", target, tmp_path, ORIGIN)


def test_the_command_names_what_is_missing(tmp_path: Path) -> None:
    for name, says in (("target", "no checkpoint at"), ("nothing", "there is no nothing; known: tokenizer")):
        done = CliRunner().invoke(app, ["export", name, "--runs", str(tmp_path), "--out", str(tmp_path / "out")])
        assert done.exit_code == 2
        assert says in done.stderr

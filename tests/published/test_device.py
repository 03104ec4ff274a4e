"""`--backend device` on an export folder, by the interpreter: the host's tokens, its figures, and pictures."""

import json
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

from tests.published.checkpoints import SIDE
from underpaint.cli.app import app
from underpaint.export.checkpoint import Request, export_checkpoint
from underpaint.runtime.device import devices, drawing
from underpaint.runtime.device.folder import FolderModels
from underpaint.runtime.device.forms import form_of
from underpaint.runtime.device.providers import check_engines
from underpaint.runtime.device.runner import DecodedImage
from underpaint.runtime.engines.context import EngineError
from underpaint.runtime.methods.registry import build_method, resolve
from underpaint.runtime.pipeline import Pipeline

pytestmark = pytest.mark.slow
ON_DEVICE = ("--backend", "device", "--device", "cpu")


@pytest.fixture(scope="module")
def folder(class_models: Path) -> Path:
    return class_models


@pytest.fixture
def own_folder(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy, for engines to be written beside the models."""
    return shutil.copytree(folder, tmp_path_factory.mktemp("own") / "models")


def compared(folder: Path, out: Path, *more: str) -> tuple[dict[tuple[str, str], Any], dict[str, Any], str]:
    """Drawings by method and prompt, the report, and what was printed."""
    command = ["compare", "1", "3", "--models", str(folder), "--top-k", "0", "--guidance", "2", "--out", str(out)]
    result = CliRunner().invoke(app, [*command, *more])
    assert result.exit_code == 0, result.output
    lines = [json.loads(line) for line in (out / "drawings.jsonl").read_text().splitlines()]
    drawings = {(line["method"], line["prompt"]): line for line in lines if "tokens" in line}
    return drawings, json.loads((out / "compare.json").read_text()), result.output


def test_a_comparison_on_the_device_draws_the_host_s_tokens(folder: Path, tmp_path: Path) -> None:
    """EAGLE-2 draws plain decoding's tokens. Row fronts draw other tokens: those of the host's row fronts."""
    settings = ("eagle2.depth=2", "eagle2.total_tokens=3", "zipar.window=2", "zipar-adaptive.window=1")
    small = [part for setting in (*settings, "pjd.window=2", "pjd.lead=1") for part in ("--set", setting)]
    cold = ("--temperature", "0", "--methods", "eagle2,zipar,zipar-adaptive,pjd", *small)
    host, host_report, _ = compared(folder, tmp_path / "host", *cold)
    device, report, printed = compared(folder, tmp_path / "device", *cold, *ON_DEVICE, "--batch", "2")
    assert device.keys() == host.keys() | {("ar-eager", "1"), ("ar-eager", "3")}
    assert {method for method, _ in host} == {"ar", "eagle2", "zipar", "zipar-adaptive", "pjd"}
    for (method, prompt), line in device.items():
        assert line["batch"] == 2
        if method in ("ar-eager", "eagle2"):
            assert line["tokens"] == host["ar", prompt]["tokens"], method
            continue
        for figure in ("tokens", "target_nfe", "drafter_nfe", "accepted", "depths"):
            assert line[figure] == host[method, prompt][figure], (method, prompt, figure)
    expected_rows, rows = ({row["method"]: row for row in one["rows"]} for one in (host_report, report))
    for figure in ("tokens_per_cycle", "target_nfe", "mean_depth", "mean_nodes", "kept_share"):
        assert rows["eagle2"][figure] == pytest.approx(expected_rows["eagle2"][figure]), figure
    assert rows["ar-eager"]["speedup_over_eager"] == rows["ar"]["speedup"] == 1
    assert rows["eagle2"]["speedup_over_eager"] > 0
    assert rows["eagle2"]["device_ms_per_cycle"] > rows["eagle2"]["host_ms_per_cycle"] > 0
    assert rows["eagle2"]["identical_to_ar"] is True
    assert report["settings"]["device"] == {"name": "cpu", "batch": 2, "torch": torch.__version__}
    assert "interprets the device's program: it is slow" in printed
    again = compared(folder, tmp_path / "device", *cold, *ON_DEVICE, "--batch", "2")
    assert "nothing left to draw" in again[2]


def test_a_quantised_target_is_named_in_the_table_and_in_the_record(folder: Path, tmp_path: Path) -> None:
    """And is another run than its original. PyTorch's own loop draws with the same numbers."""
    options = ("--temperature", "0", "--methods", "ar", *ON_DEVICE)
    drawings, report, printed = compared(folder, tmp_path, *options, "--quantization", "int8")
    assert report["model"]["quantization"] == "int8"
    assert "int8 weights, temperature 0" in printed
    for prompt in "13":
        assert drawings["ar", prompt]["tokens"] == drawings["ar-eager", prompt]["tokens"]
    command = ["compare", "1", "3", "--models", str(folder), "--top-k", "0", "--guidance", "2", "--out", str(tmp_path)]
    refused = CliRunner().invoke(app, [*command, *options])
    assert refused.exit_code == 2
    assert "drawings.jsonl" in refused.output


def test_after_a_trial_the_faster_of_drafting_and_plain_decoding_draws_the_host_s_tokens(
    folder: Path, tmp_path: Path
) -> None:
    shared = ["--models", str(folder), "--top-k", "0", "--temperature", "0", "--save-tokens", "--out", str(tmp_path)]
    tree = ["--method", "eagle2", "--set", "depth=2", "--set", "total_tokens=3"]
    command = ["generate", *"12345", *shared, *tree, *ON_DEVICE, "--draft-if-faster"]
    result = CliRunner().invoke(app, command)
    assert result.exit_code == 0, result.output
    match = re.search(
        r"([\d.]+) s per picture by eagle2, ([\d.]+) s by plain autoregression: .* by (\w+)", result.output
    )
    assert match is not None
    assert match[3] == ("ar" if float(match[2]) < float(match[1]) else "eagle2")
    drawings = [json.loads(path.read_text()) for path in sorted(tmp_path.glob("*.json"))]
    assert [one["method"] for one in drawings] == ["eagle2", "eagle2", "ar", "ar", match[3]]
    host = CliRunner().invoke(app, ["generate", *"12345", *shared[:-1], str(tmp_path / "host"), "--method", "ar"])
    assert host.exit_code == 0, host.output
    plain = [json.loads(path.read_text())["tokens"] for path in sorted((tmp_path / "host").glob("*.json"))]
    assert [one["tokens"] for one in drawings] == plain


def test_pictures_are_drawn_in_batches(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    command = ["generate", "1", "3", "--models", str(folder), "--top-k", "0", "--method", "ar", "--seeds", "2"]
    command += ["--save-tokens", "--temperature", "1"]
    by = {"host": (), "device": (*ON_DEVICE, "--batch", "3")}
    tokens = {}
    for name, more in by.items():
        result = CliRunner().invoke(app, [*command, "--out", str(tmp_path / name), *more])
        assert result.exit_code == 0, result.output
        files = sorted((tmp_path / name).iterdir())
        tokens[name] = {file.name: json.loads(file.read_text())["tokens"] for file in files if file.suffix == ".json"}
        assert len(files) == 8
    assert tokens["device"] == tokens["host"]
    picture = np.array(next(iter(tokens["device"].values())))

    def spoilt(runner: Any, arrivals: Any, **kwargs: Any) -> Iterator[tuple[int, DecodedImage]]:
        for number, _ in enumerate(arrivals):
            image, error = (picture, None) if number else (None, "its logits held NaN")
            yield number, DecodedImage(image, SIDE**2, error, np.zeros((SIDE**2, 3), dtype=np.int64))

    monkeypatch.setattr(drawing.DeviceRunner, "decode_all", spoilt)
    fewer = ["--out", str(tmp_path / "spoilt"), *by["device"], "--batch", "2", "--seeds", "1"]
    result = CliRunner().invoke(app, [*command, *fewer])
    assert result.exit_code == 2
    assert "1 pictures were not drawn, the others are written: " in result.output
    assert "its logits held NaN" in result.output
    assert len([*(tmp_path / "spoilt").glob("*.png")]) == 1


def test_too_little_memory_is_told_before_weights_are_read(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.sysconf", lambda name: 1)
    monkeypatch.setattr("underpaint.runtime.device.folder.read_decoder", lambda *_: pytest.fail("weights were read"))
    result = CliRunner().invoke(app, ["compare", "1", "--models", str(folder), "--methods", "ar", *ON_DEVICE])
    assert result.exit_code == 2
    message = (
        r"needs 0.0 GiB \(0.0 of them for the weights\), [\d,]+ bytes; the device has 0.0 free, 1 bytes; not one image"
    )
    assert re.search(message, " ".join(result.output.split()))


def test_lumina_s_lines_are_drawn_as_on_the_host(tmp_path: Path) -> None:
    """Prompts of unequal length in one batch, a guidance pair, and a token behind every line."""
    pytest.importorskip("transformers", reason="the extra 'chameleon' is not installed")
    from tests.published.text_models import LUMINA, chameleon

    chameleon(False, 4).save_pretrained(tmp_path / "lumina")
    export_checkpoint(Request("chameleon", tmp_path / "lumina", options=LUMINA, neighbours=5), tmp_path / "out")
    cold = ["--temperature", "0", "--methods", "ar", "--guidance", "3", "--top-k", "0"]
    drawings = {}
    for name, more in {"host": (), "device": (*ON_DEVICE, "--batch", "2")}.items():
        command = ["compare", "1,40,41,42,51", "1,51", "--models", str(tmp_path / "out"), "--out", str(tmp_path / name)]
        result = CliRunner().invoke(app, [*command, *cold, *more])
        assert result.exit_code == 0, result.output
        lines = [json.loads(line) for line in (tmp_path / name / "drawings.jsonl").read_text().splitlines()]
        drawings[name] = {(line["method"], line["prompt"]): line["tokens"] for line in lines if "tokens" in line}
    assert len(drawings["device"]) == 4
    for (method, prompt), tokens in drawings["device"].items():
        assert tokens == drawings["host"]["ar", prompt], method


def test_jacobi_windows_and_plain_decoding_draw_the_host_s_tokens_at_temperature_1(
    folder: Path, tmp_path: Path
) -> None:
    """Neither method runs a drafter pass."""
    options = ("--methods", "ar,scd-maximal", "--set", "scd-maximal.window=4")
    host, _, _ = compared(folder, tmp_path / "host", *options)
    device, report, _ = compared(folder, tmp_path / "device", *options, *ON_DEVICE, "--batch", "2")
    single, _, _ = compared(folder, tmp_path / "single", "--methods", "ar", *ON_DEVICE)
    for prompt in "13":
        assert single["ar", prompt]["tokens"] == host["ar", prompt]["tokens"]
        for figure in ("tokens", "target_nfe", "drafter_nfe", "accepted", "depths"):
            assert device["scd-maximal", prompt][figure] == host["scd-maximal", prompt][figure], figure
        for method in ("ar", "ar-eager"):
            assert device[method, prompt]["tokens"] == host["ar", prompt]["tokens"], method
    assert {row["drafter_nfe"] for row in report["rows"]} == {0}


def test_an_engine_draws_what_torch_draws(own_folder: Path, tmp_path: Path) -> None:
    options = ("--temperature", "0", "--methods", "ar")
    by_onnx = (*ON_DEVICE, "--forward", "onnx")
    missing = CliRunner().invoke(
        app, ["compare", "1", "--models", str(own_folder), "--methods", "ar", "--out", str(tmp_path), *by_onnx]
    )
    assert missing.exit_code == 2
    assert f"write it with `underpaint engine {own_folder} --backend onnx`" in " ".join(missing.output.split())
    result = CliRunner().invoke(app, ["engine", str(own_folder), "--backend", "onnx"])
    assert result.exit_code == 0, result.output
    assert [line.split(":")[0] for line in result.output.splitlines()] == [
        *("drafter.layers.onnx", "drafter.head.onnx", "target.layers.onnx", "target.head.onnx")
    ]
    host, _, _ = compared(own_folder, tmp_path / "host", *options)
    device, report, printed = compared(own_folder, tmp_path / "engine", *options, *by_onnx, "--batch", "2")
    assert [device["ar", prompt]["tokens"] for prompt in "13"] == [host["ar", prompt]["tokens"] for prompt in "13"]
    assert report["settings"]["device"]["forward"] == "onnx"
    assert "forward by onnx" in " ".join(printed.split())


def test_engines_are_built_for_the_passes_of_methods(own_folder: Path) -> None:
    """By NVIDIA's own builder; what was not built is refused with the command that builds it."""
    pytest.importorskip("tensorrt_rtx", reason="the extra 'tensorrt-rtx' is not installed")
    small = ["--set", "eagle2.depth=2", "--set", "eagle2.total_tokens=3"]
    command = ["engine", str(own_folder), "--backend", "tensorrt-rtx", "--batch", "2", "--for-device", "eagle2", *small]
    result = CliRunner().invoke(app, command)
    assert result.exit_code == 0, result.output
    names = [f"{model}.device.{part}" for model in ("target", "drafter") for part in ("layers", "head")]
    assert [line.split(":")[0] for line in result.output.splitlines()] == [
        f"{name}.tensorrt-rtx.engine" for name in names
    ]
    pipeline = Pipeline.open(own_folder, backend="device")

    def form(*settings: str) -> Any:
        config = resolve("eagle2", 1.0, None, settings, "paper")
        method = build_method("eagle2", config, pipeline.tables)
        return form_of(method, pipeline.sampling, pipeline.grid)

    built, larger = form("depth=2", "total_tokens=3"), form("depth=3", "total_tokens=3")
    models, rows = FolderModels.of(pipeline), 1 if pipeline.sampling.guidance == 1 else 2
    assert rows == 2
    for batch in (1, 2):
        check_engines(models, [built], "tensorrt-rtx", batch, rows)
    with pytest.raises(EngineError, match=r"drafter.device.layers has no engine for passes of .* --batch 2 --for-dev"):
        check_engines(models, [larger], "tensorrt-rtx", 2, rows)
    with pytest.raises(
        EngineError, match=r"passes of 2 to 4 rows, .* of 'target.device.layers' .*, got 6 .* --batch 3 --for"
    ):
        check_engines(models, [built], "tensorrt-rtx", 3, rows)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (
            ["--device", "cpu", "--forward", "tensorrt-rtx"],
            "--forward tensorrt-rtx: TensorRT needs a GPU, got --device",
        ),
        (["--device", "cpu", "--forward", "tensorrt"], "tensorrt is not installed"),
        (["--device", "cpu", "--forward", "jax"], "--forward: expected one of torch, onnx, tensorrt, tensorrt-rtx,"),
        (["--forward", "tensorrt-rtx"], "device 'cuda': there is no CUDA device here"),
    ],
)
def test_a_forward_that_cannot_be_made_here_is_refused(folder: Path, options: list[str], said: str) -> None:
    command = ["compare", "1", "--models", str(folder), "--methods", "ar", "--backend", "device"]
    result = CliRunner().invoke(app, [*command, *options])
    assert result.exit_code == 2
    assert said in " ".join(result.output.split())


def test_onnx_runtime_is_refused_on_a_gpu(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(devices, "open_device", torch.device)
    command = ["compare", "1", "--models", str(folder), "--methods", "ar", "--backend", "device", "--device", "cuda:1"]
    result = CliRunner().invoke(app, [*command, "--forward", "onnx"])
    assert result.exit_code == 2
    message = (
        "--forward onnx: expected --device cpu, got cuda:1: a captured cycle cannot hold ONNX Runtime's passes; use "
        "--forward torch or tensorrt there, or ONNX Runtime without the device's cycle, by --backend cuda:1"
    )
    assert message in " ".join(result.output.split())


def test_a_server_draws_the_host_s_pictures(folder: Path) -> None:
    """With guidance and without: the weights are read once, and the two kinds take turns."""
    pytest.importorskip("fastapi", reason="the extra 'serve' is not installed")
    from tests.serve.served import events_of, pictures, request
    from underpaint.serve.engine import EngineLoop
    from underpaint.serve.models import DeviceSettings, ServedModels

    requests = [request("1", (4, 5), "ar", guidance=2.0), request("3", (6,), "ar", guidance=1.0, temperature=0.0)]
    images = []
    for more in ({}, {"backend": "device", "device": DeviceSettings("cpu")}):
        engine = EngineLoop(ServedModels.open_folder(folder, **more), 3)
        images.append([pictures(one) for one in events_of(*(engine.submit(one) for one in requests))])
        engine.close()
    np.testing.assert_array_equal(*map(np.concatenate, images))

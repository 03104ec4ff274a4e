"""The benchmark for GPUs, on the TensorRT that stands in: wrong engines end it with code 1."""

import json
from collections.abc import Callable
from pathlib import Path
from shutil import copytree, ignore_patterns
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from benchmarks import gpu
from tests.conformance import stand_in
from tests.conformance.on_tensorrt import opened
from underpaint.algos.arrays import FloatArray
from underpaint.export.parity import MOST
from underpaint.export.tensorrt_build import EngineBuilder
from underpaint.runtime.engines import device_memory
from underpaint.runtime.engines.context import EngineError, open_session
from underpaint.runtime.engines.device_memory import DeviceBuffers
from underpaint.runtime.engines.engine import LoadedDecoder, PassOutput, manifest_config
from underpaint.runtime.engines.onnx_engine import OnnxDecoder
from underpaint.runtime.engines.tensorrt_engine import TensorRTEngine
from underpaint.zoo.load import locate


@pytest.fixture(autouse=True)
def _stand_in(monkeypatch: pytest.MonkeyPatch) -> None:
    stand_in.stand_in(monkeypatch)
    monkeypatch.setattr(gpu, "BUCKETS", (1, 8))
    monkeypatch.setattr(gpu, "CLASS", 3)


def test_the_gpu_benchmark_measures_what_it_says(halves: Path) -> None:
    folder, reference = halves / "out", halves / "reference"
    for name in ("target", "drafter"):
        opened(name, folder)
        apart = gpu.parity(name, folder, reference, stand_in.BACKEND)
        assert set(apart) == {"1", "3", "4", "8"}
        assert 0 < max(apart.values()) < 0.05
        timings = gpu.timings(name, folder, stand_in.BACKEND, 2)
        assert [count for count, _ in timings["ms"]] == [1, 8]
        assert timings["captured"]
    parts = gpu.greedy(folder, reference, stand_in.BACKEND)
    assert parts["parts_at"] is None or parts["margin"] < gpu.MOST_MARGIN["fp16"]
    assert gpu.token_ms(folder, stand_in.BACKEND) > 0


def test_a_part_that_fails_costs_the_gpu_benchmark_no_other(capsys: pytest.CaptureFixture[str]) -> None:
    result = {"gpu": "one"}
    gpu.attempt("broken", lambda: {}["missing"], result)
    gpu.attempt("whole", lambda: 2.0, result)
    assert result == {"gpu": "one", "broken_not_run": "KeyError: 'missing'", "whole": 2.0}
    assert "Traceback" in capsys.readouterr().err


@pytest.fixture
def small(halves: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The whole benchmark runs on small models, and on no GPU."""
    folder = tmp_path / "engines"
    copytree(halves / "out", folder, ignore=ignore_patterns("*.engine", "*.record"))

    def built(
        folder: Path, builder: EngineBuilder, only: tuple[str, ...], buckets: tuple[int, ...], rows: tuple[int, ...]
    ) -> list[tuple[Path, SimpleNamespace]]:
        assert builder[1:] == (stand_in.BACKEND, stand_in.GPU, False)
        for each in only:
            stand_in.build(folder, each, buckets, rows)
        return [(folder, SimpleNamespace(engine_bytes=1))] * len(only)

    monkeypatch.setattr(gpu, "lacking", lambda look: None)
    monkeypatch.setattr(gpu, "gpu_name", lambda: stand_in.GPU)
    monkeypatch.setattr(gpu, "backend_module", lambda backend: stand_in.MODULE)
    monkeypatch.setattr(gpu, "prepare", lambda work, precision: (folder, halves / "reference"))
    monkeypatch.setattr(gpu, "build_folder", built)
    monkeypatch.setattr(gpu, "best_token_ms", lambda precision, rounds: 0.5)


def ran(capsys: pytest.CaptureFixture[str]) -> tuple[int, dict[str, Any], str]:
    """Exit code, figures, and what was said on standard error."""
    code = gpu.main(["--rounds", "1"])
    out, err = capsys.readouterr()
    return code, json.loads(out.splitlines()[-1]), err


@pytest.mark.usefixtures("small")
def test_right_engines_pass(capsys: pytest.CaptureFixture[str]) -> None:
    code, record, _ = ran(capsys)
    assert (code, record["failed"]) == (0, [])
    assert not [name for name in record if name.endswith("not_run")]
    assert record["best_token_ms"] == 0.5
    assert set(record["target_passes"]) == {"ms", "captured"}


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("spoil", [lambda logits: logits[..., ::-1].copy(), lambda logits: logits * np.nan])
def test_wrong_engines_fail_and_each_threshold_is_named(
    spoil: Callable[[FloatArray], FloatArray], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Engines whose logits stand at the wrong codes, or are no numbers."""
    as_ever = TensorRTEngine.run

    def wrong(engine: TensorRTEngine, *args: Any, **kwargs: Any) -> PassOutput:
        out = as_ever(engine, *args, **kwargs)
        return out._replace(logits=spoil(out.logits))

    monkeypatch.setattr(TensorRTEngine, "run", wrong)
    code, record, err = ran(capsys)
    assert code == 1
    failures = record["failed"]
    assert {line.partition(":")[0] for line in failures} >= {"target_parity", "drafter_parity"}
    assert f"expected at most {MOST['fp16']:g}" in failures[0]
    assert all(f"FAILED {line}" in err for line in failures)


@pytest.mark.usefixtures("small")
def test_an_engine_that_draws_another_picture_fails(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Where the choice was not close; of two tokens that are nearly as likely, either may come."""
    for margin, ends in ((0.04, 0), (0.06, 1), (float("nan"), 1)):
        monkeypatch.setattr(gpu, "greedy", lambda *args, margin=margin: {"parts_at": 0, "margin": margin})
        code, record, _ = ran(capsys)
        assert code == ends
        if ends:
            assert record["failed"][0].startswith("greedy: parts from float32 at cell 0, whose best two tokens lie")


@pytest.mark.usefixtures("small")
def test_a_part_that_is_lacking_ends_it_with_another_code(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The baseline among them: without it, times of engines say little."""
    monkeypatch.setattr(gpu, "best_token_ms", lambda precision, rounds: {}["triton"])
    code, record, _ = ran(capsys)
    assert (code, record["best_token_ms_not_run"]) == (2, "KeyError: 'triton'")
    assert record["token_ms"] > 0


def on_cpu(name: str, kind: str, folder: Path, context: object = None, backend: str = "cpu") -> LoadedDecoder:
    """Any graph on the CPU's provider, half precision too; on a device's buffers where a GPU is asked for."""
    located = locate(name, kind, folder)
    decoder = OnnxDecoder(open_session(located.path), manifest_config(located.manifest.settings, name), name)
    return OnHost(*decoder) if backend == "cuda" else decoder


class OnHost(OnnxDecoder):
    """Its device is memory of the host."""

    def buffers(self, rows: int) -> DeviceBuffers:
        return DeviceBuffers(self.session, self.config, rows, "cpu")


@pytest.mark.usefixtures("small")
def test_without_tensorrt_what_ran_in_its_place_is_said(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The device runtime alone, or ONNX Runtime's CUDA provider too: the code is that of what ran."""
    lacked = iter([None, "tensorrt-rtx is not installed", "no CUDA provider"])
    monkeypatch.setattr(gpu, "lacking", lambda look: next(lacked))
    code, record, err = ran(capsys)
    assert (code, record["backend"], record["best_token_ms"]) == (0, None, 0.5)
    assert record["instead"] == "tensorrt-rtx is not installed; no CUDA provider; ran the device runtime alone"
    assert f"instead of --backend tensorrt-rtx: {record['instead']}" in err
    assert not {"target_parity", "token_ms", "not_run"} & set(record)
    lacked = iter([None, "tensorrt-rtx is not installed", None])
    monkeypatch.setattr(gpu, "load_decoder", on_cpu)
    monkeypatch.setattr(device_memory, "torch", torch)
    code, record, _ = ran(capsys)
    assert (code, record["backend"], record["asked"]) == (0, "cuda", "tensorrt-rtx")
    assert record["instead"] == "tensorrt-rtx is not installed; ran --backend cuda and the device runtime"
    assert set(record["target_parity"]) == {"1", "3", "4", "8"}
    assert not [name for name in record if name.endswith("not_run")]
    assert "engines" not in record
    lacked = iter([None, "tensorrt-rtx is not installed", None])
    monkeypatch.setattr(gpu, "best_token_ms", lambda precision, rounds: {}["triton"])
    assert ran(capsys)[0] == 2


def test_without_a_gpu_the_last_line_says_so(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def no_gpu() -> str:
        raise EngineError("there is no GPU")

    monkeypatch.setattr(gpu, "gpu_name", no_gpu)
    out = tmp_path / "found.json"
    assert gpu.main(["--out", str(out)]) == 2
    record = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert record == json.loads(out.read_text())
    assert record["not_run"] == "there is no GPU"
    assert set(record) >= {"benchmark", "backend", "precision", "machine", "command"}

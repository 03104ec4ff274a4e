"""NVIDIA's own parser and builder on every kind of graph; engines that do not fit are refused."""

import json
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from typer.testing import CliRunner

from benchmarks.gpu import main as benchmark
from tests.conformance import stand_in
from tests.published import text_models
from tests.published.checkpoints import HEADS, SIDE, eagle_weights, save_dtok, save_llamagen
from tests.published.limits import files_of_at_most
from underpaint.artifacts.decoder_graph import MASKED_SCORE
from underpaint.artifacts.manifest import ManifestError
from underpaint.cli.app import app
from underpaint.export.checkpoint import Request, export_checkpoint
from underpaint.export.device_engines import build_folder
from underpaint.export.tensorrt_build import EngineBuilder, position_counts
from underpaint.models.published.options import LoadOptions
from underpaint.runtime.engines.cache import HostMemory, KeyValueCache
from underpaint.runtime.engines.context import EngineError
from underpaint.runtime.engines.device_memory import InPlaceMemory
from underpaint.runtime.engines.engine import manifest_config
from underpaint.runtime.engines.tensorrt_engine import load_tensorrt
from underpaint.runtime.engines.tensorrt_files import (
    ANY_GPU,
    EngineFile,
    EngineRecord,
    backend_module,
    paths,
    read_engine,
    read_record,
    write_engine,
)
from underpaint.runtime.engines.tensorrt_runtime import _TYPES
from underpaint.zoo.load import manifest, names

tensorrt = pytest.importorskip("tensorrt_rtx", reason="the extra 'tensorrt-rtx' is not installed")
BACKEND = "tensorrt-rtx"
BUILDER = EngineBuilder(tensorrt, BACKEND, ANY_GPU)
PARTS = ("layers", "head")
TINY = LoadOptions(heads=HEADS, grid_side=SIDE)


def exported(work: Path, precision: str) -> Path:
    """A captions target and its drafter in one folder."""
    save_llamagen(work / "t2i.pt", captions=True)
    save_file(eagle_weights(), work / "eagle.safetensors")
    out = work / "out"
    pair = ("llamagen-t2i", work / "t2i.pt")
    export_checkpoint(Request("llamagen-t2i", work / "t2i.pt", precision, TINY), out)
    drafter = Request("eagle-drafter", work / "eagle.safetensors", precision, target=pair, target_options=TINY)
    export_checkpoint(drafter, out)
    return out


@pytest.mark.parametrize("precision", ["fp32", "fp16"])
def test_what_the_runtime_opens_is_built_and_nothing_else(tmp_path: Path, precision: str) -> None:
    folder = exported(tmp_path, precision)
    built = [record for _, record in build_folder(folder, BUILDER, buckets=(1, 8))]
    assert set(names(folder)) == {"target", "drafter", "condition"}
    assert [record.model for record in built] == [f"{name}.{part}" for name in ("drafter", "target") for part in PARTS]
    # A guidance pair, as these models are meant to be sampled.
    assert {record.rows for record in built} == {(2, 2)}
    assert {record.precision for record in built} == {precision}
    # A prefill of three condition positions, and two buckets.
    assert built[2].passes == built[3].passes == ((1, 1), (3, 3), (8, 8))
    for record in built:
        place = paths(folder, record.model, BACKEND)
        assert place.engine.stat().st_size == record.engine_bytes > 1000
        assert record.gpu == ANY_GPU
        assert record.version == tensorrt.__version__
    assert len(list(folder.glob("*.engine"))) == 4
    assert not list(folder.glob("*.cache"))


def test_pictures_are_no_engines_work(tokenizer: Path) -> None:
    with pytest.raises(EngineError, match="expected models among none, the targets and drafters, got vq_decoder; what"):
        list(build_folder(tokenizer, BUILDER, only=("vq_decoder",)))


@pytest.mark.parametrize("precision", ["fp32", "fp16", "bf16"])
def test_learnt_positions_build(tmp_path: Path, precision: str) -> None:
    save_dtok(tmp_path / "dtok.pth")
    options = LoadOptions(heads=HEADS, prefix=6)
    export_checkpoint(Request("tar-dtok", tmp_path / "dtok.pth", precision, options), tmp_path / "out")
    built = [record for _, record in build_folder(tmp_path / "out", BUILDER, only=("target",), buckets=(1,))]
    assert [record.precision for record in built] == [precision] * 2


@pytest.mark.parametrize("precision", ["fp32", "fp16"])
def test_text_models_build(tmp_path: Path, precision: str) -> None:
    """Chameleon normalises heads, its drafter too; Tar's language model has biases and a prompt of its own length."""
    pytest.importorskip("transformers", reason="the extra 'chameleon' is not installed")
    text_models.chameleon(swin=True, kv_heads=2).save_pretrained(tmp_path / "chameleon")
    text_models.save_anole_drafter(tmp_path / "drafter")
    text_models.save_qwen(tmp_path / "qwen")
    pair, prompt = ("chameleon", tmp_path / "chameleon"), text_models.OPTIONS
    export_checkpoint(Request(*pair, precision, prompt), tmp_path / "anole")
    drafter = Request("eagle-drafter", tmp_path / "drafter", precision, target=pair, target_options=prompt)
    export_checkpoint(drafter, tmp_path / "anole")
    tar_options = replace(prompt, first_code=text_models.FIRST_CODE)
    export_checkpoint(Request("tar-lm", tmp_path / "qwen", precision, tar_options), tmp_path / "tar")
    export_checkpoint(Request(*pair, precision, text_models.LUMINA), tmp_path / "lumina")
    for name, parts, counts in (
        ("anole", ("target", "drafter"), (1, 8)),
        ("tar", ("target",), (1, 8)),
        ("lumina", ("target",), (1, 2, 11)),
    ):
        built = {record.model: record for _, record in build_folder(tmp_path / name, BUILDER, only=parts, buckets=(1,))}
        assert {record.precision for record in built.values()} == {precision}
        layers = built["target.layers"]
        assert layers.passes == tuple((count, count) for count in counts)
        assert layers.rows == ((1, 1) if name == "tar" else (2, 2)), "Tar's language model is drawn without guidance"


def test_a_pass_may_be_as_large_as_the_image(tmp_path: Path) -> None:
    """Methods that draft a whole image ask for it; a larger profile would serve no pass."""
    save_llamagen(tmp_path / "c2i.pt", captions=False)
    export_checkpoint(Request("llamagen-c2i", tmp_path / "c2i.pt", options=TINY), tmp_path / "out")
    built = [record for _, record in build_folder(tmp_path / "out", BUILDER, buckets=(1, 100), rows=(1, 2))]
    assert [(record.rows, record.passes) for record in built] == 2 * [((1, 2), ((1, 1), (16, 16)))]
    config = replace(manifest_config(manifest("target", tmp_path / "out").settings, "target"), eol_token=3)
    assert position_counts(config, (1, 8)) == (1, 8, 16)
    assert position_counts(config, (1, 8, 64)) == (1, 8, 19)


def test_nvidias_package_has_what_the_runtime_asks_for() -> None:
    """The classes that stand in for NVIDIA's where there is no GPU promise nothing that NVIDIA's lack."""
    for ours, theirs in (
        (stand_in.Context, tensorrt.IExecutionContext),
        (stand_in.Engine, tensorrt.ICudaEngine),
        (stand_in.Config, tensorrt.IRuntimeConfig),
        (stand_in.RuntimeCache, tensorrt.IRuntimeCache),
    ):
        attributes = {name for name in vars(ours) if not name.startswith("_")}
        attributes -= {"capturable", "live", "compiled", "gpu", "need", "name", "profiles", "types", "kinds", "shapes"}
        assert attributes <= set(dir(theirs))
    assert tensorrt.IRuntimeConfig.dynamic_shapes_kernel_specialization_strategy.fset is not None
    assert "ON_PROFILE_CHANGE" in tensorrt.ExecutionContextAllocationStrategy.__members__
    assert {"EAGER", "LAZY"} <= set(tensorrt.DynamicShapesKernelSpecializationStrategy.__members__)
    assert set(_TYPES) <= set(tensorrt.DataType.__members__)
    assert tensorrt.Runtime.engine_host_code_allowed.fset is not None


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Path:
    work = tmp_path_factory.mktemp("engines")
    save_llamagen(work / "c2i.pt", captions=False)
    export_checkpoint(Request("llamagen-c2i", work / "c2i.pt", options=TINY), work / "out")
    list(build_folder(work / "out", BUILDER._replace(gpu="NVIDIA X"), buckets=(1,), rows=(1,)))
    return work / "out"


def read(folder: Path, version: str = tensorrt.__version__, gpu: str = "NVIDIA X") -> EngineFile:
    return read_engine(folder, "target.layers", BACKEND, manifest("target", folder), version, gpu)


def test_an_engine_is_tied_to_graph_gpu_and_version(small: Path) -> None:
    _, record = read(small)
    assert record.onnx_sha256 == manifest("target", small).sha256
    later = tensorrt.__version__.rpartition(".")[0] + ".999"
    for version, gpu, message in (
        (later, "NVIDIA X", f"expected tensorrt-rtx version {later}"),
        (tensorrt.__version__, "NVIDIA Y", "built for NVIDIA X, this machine has NVIDIA Y"),
    ):
        with pytest.raises(EngineError, match=message):
            read(small, version, gpu)
    place = paths(small, "target.layers", BACKEND)
    content = place.engine.read_bytes()
    try:
        write_engine(small, content, replace(record, onnx_sha256="0" * 64))
        with pytest.raises(EngineError, match=r"expected graph \(sha256\)"):
            read(small)
        write_engine(small, content, replace(record, version_compatible=True))
        assert read(small, later).record.version == tensorrt.__version__
        for other in ("99.0", "0.1"):
            with pytest.raises(EngineError, match=f"expected tensorrt-rtx version {other}"):
                read(small, other)
        write_engine(small, content, record)
        place.engine.write_bytes(content[:-1])
        with pytest.raises(EngineError, match="expected engine bytes"):
            read(small)
        place.record.write_text("{}")
        with pytest.raises(EngineError, match="damaged"):
            read(small)
    finally:
        write_engine(small, content, record)


def test_a_full_disk_leaves_the_engine_that_was_there(small: Path, tmp_path: Path) -> None:
    _, record = read(small)
    shutil.copytree(small, tmp_path / "out")
    names = sorted(file.name for file in (tmp_path / "out").iterdir())
    with files_of_at_most(1000), pytest.raises(OSError, match="while writing the engine of 'target"):
        write_engine(tmp_path / "out", bytes(2000), record)
    assert read(tmp_path / "out").record == record
    assert names == sorted(file.name for file in (tmp_path / "out").iterdir())


def test_what_cannot_be_built_is_said(small: Path, tmp_path: Path) -> None:
    with pytest.raises(EngineError, match="--backend: expected tensorrt or tensorrt-rtx"):
        backend_module("cuda")
    with pytest.raises(EngineError, match="expected models among none"):
        list(build_folder(tmp_path, BUILDER, rows=(1,)))
    with pytest.raises(EngineError, match="a graph: tensorrt_rtx cannot read it"):
        BUILDER.build(b"no graph", [], "a graph", "fp32", tmp_path / "timing")
    graph = small / "target.onnx"
    content = graph.read_bytes()
    try:
        graph.write_bytes(content[:-5])
        with pytest.raises(ManifestError, match="cut short"):
            list(build_folder(small, BUILDER))
    finally:
        graph.write_bytes(content)


def test_a_backend_that_is_not_there_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    from underpaint.runtime.engines import tensorrt_files as files

    monkeypatch.setattr(files, "MODULES", {**files.MODULES, "tensorrt": "no_such_tensorrt"})
    with pytest.raises(EngineError, match="tensorrt is not installed"):
        backend_module("tensorrt")


def test_a_record_is_plain_json(small: Path) -> None:
    values = json.loads(paths(small, "target.layers", BACKEND).record.read_text())
    assert set(values) == set(EngineRecord.__slots__)


def test_the_device_cache_commits_as_the_hosts_does(small: Path) -> None:
    """On the CPU, whose tensors index as CUDA's do."""
    config = manifest_config(manifest("target", small).settings, "target")
    memories = HostMemory(config, 2), InPlaceMemory(config, 2, (1, 8), "cpu")
    memories[0].grow(config.capacity)
    host, device = (KeyValueCache(memory, 2) for memory in memories)
    rng = np.random.default_rng(0)

    def run(count: int) -> None:
        new = (config.layers, 2, config.kv_heads, count, config.head_dim)
        keys, values = (rng.standard_normal(new).astype(np.float32) for _ in range(2))
        memories[0].new_keys, memories[0].new_values = keys, values
        memories[1].new_positions = count
        for place, new in enumerate((keys, values)):
            memories[1].caches[place::2, :, :, :count] = torch.from_numpy(new)

    for cache in (host, device):
        cache.clear((0, 1))
    memories[0].grow(config.capacity)
    for chosen, counts in ((slice(None), None), (np.array([0, 2]), None), (np.array([[1, 0], [3, 0]]), (2, 1))):
        run(6)
        for cache in (host, device):
            cache.commit(chosen, counts)
    run(2)
    for cache in (host, device):
        assert cache.write_scratch(1) == 2
        cache.write_at(np.array([0, 1]), np.array([0, 4]))
    np.testing.assert_array_equal(memories[1].keys.numpy(), memories[0].keys)
    np.testing.assert_array_equal(memories[1].values.numpy(), memories[0].values)
    np.testing.assert_array_equal(device.past_bias, host.past_bias[:, :, : config.capacity])
    assert device.lengths.tolist() == host.lengths.tolist() == [10, 9]
    run(8)
    with pytest.raises(EngineError, match="expected at most 17 positions, got 18"):
        device.commit(slice(None))
    device.clear()
    assert (device.length, device.past_bias.max()) == (0, MASKED_SCORE)


def test_the_engine_command(small: Path, tmp_path: Path) -> None:
    runner = CliRunner()
    folder = tmp_path / "exported"
    shutil.copytree(small, folder)
    arguments = ["--backend", BACKEND, "--model", "target", "--buckets", "1,8", "--rows", "2,1", "--version-compatible"]
    result = runner.invoke(app, ["engine", str(folder), *arguments])
    assert result.exit_code == 0, result.output
    lines = result.output.splitlines()
    assert [line.partition(":")[0] for line in lines] == [f"target.{part}.{BACKEND}.engine" for part in PARTS]
    assert "MiB without weights, fp32, 2 profiles of 1 to 2 rows, for any" in lines[0]
    assert read_record(folder, "target.layers", BACKEND).version_compatible
    tmp_path = tmp_path / "empty"
    tmp_path.mkdir()
    for arguments, message in (
        ([str(tmp_path), "--backend", BACKEND], "expected models among none"),
        ([str(small), "--backend", "cuda"], "expected tensorrt or tensorrt-rtx"),
        ([str(small), "--backend", BACKEND, "--buckets", "0,8"], "expected numbers from 1"),
        ([str(small), "--backend", BACKEND, "--buckets", "8,x"], "expected numbers separated by commas"),
        ([str(small), "--backend", BACKEND, "--rows", "0"], "--rows: expected numbers from 1 to 64"),
        ([str(small), "--backend", BACKEND, "--model", "judge"], "got judge"),
        ([str(tmp_path / "none"), "--backend", BACKEND], "no folder"),
    ):
        result = runner.invoke(app, ["engine", *arguments])
        assert result.exit_code == 2
        assert message in result.output


@pytest.mark.skipif(torch.cuda.is_available(), reason="says what a machine without a GPU cannot do")
def test_without_a_gpu_nothing_falls_back(small: Path) -> None:
    with pytest.raises(EngineError, match="no GPU"):
        load_tensorrt("target", "target", small, BACKEND)
    result = CliRunner().invoke(app, ["engine", str(small), "--backend", "tensorrt"])
    assert result.exit_code == 2
    assert "no GPU" in result.output


@pytest.mark.skipif(torch.cuda.is_available(), reason="says what a machine without a GPU cannot do")
def test_the_gpu_benchmark_says_plainly_what_was_not_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert benchmark(["--out", str(tmp_path / "gpu.json")]) == 2
    report = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert report == json.loads((tmp_path / "gpu.json").read_text())
    assert report["not_run"].startswith("no GPU")

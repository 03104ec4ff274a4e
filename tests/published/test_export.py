"""Load, export, check, decode: each published form, tiny, through ONNX Runtime; and nothing half-written."""

import json
import re
import shutil
from collections.abc import Callable
from dataclasses import replace
from inspect import signature
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file
from safetensors.torch import save_file
from typer.testing import CliRunner

from tests.models.test_golden import golden_transformer
from tests.published.checkpoints import HEADS, SIDE, VOCAB, eagle_weights, noise, save_dtok, save_llamagen
from tests.published.limits import files_of_at_most
from underpaint.algos.accept.point import PointProposals
from underpaint.algos.chance import sampling
from underpaint.algos.draft.eagle2 import Eagle2
from underpaint.algos.rows import SamplingParams
from underpaint.algos.step import decode
from underpaint.artifacts.manifest import ManifestError, check
from underpaint.artifacts.model_index import read_index
from underpaint.cli.app import app as underpaint
from underpaint.cli.export import _KINDS, export
from underpaint.export import checkpoint, decoders
from underpaint.export.checkpoint import Request, export_checkpoint
from underpaint.export.decoder_parity import LARGE, _distinguishable_features, compare, prepare
from underpaint.export.verify import ProviderResult, verify
from underpaint.models.published.families import FAMILIES, KINDS
from underpaint.models.published.load import load
from underpaint.models.published.options import LoadOptions
from underpaint.runtime.engines import providers
from underpaint.runtime.engines.context import EngineContext, EngineError, open_session
from underpaint.runtime.engines.device_memory import DeviceBuffers
from underpaint.runtime.engines.drafter import EngineDrafter
from underpaint.runtime.engines.onnx_engine import OnnxDecoder
from underpaint.runtime.engines.providers import GpuBackend
from underpaint.runtime.engines.target import EngineTarget
from underpaint.runtime.methods.registry import METHODS
from underpaint.zoo.load import manifest

TINY = LoadOptions(heads=HEADS, grid_side=SIDE)
ONE_THREAD = EngineContext(threads=1)


@pytest.fixture(scope="module")
def folder(class_models: Path) -> Path:
    return class_models


def test_an_export_is_whole_and_recorded(folder: Path) -> None:
    names = {"target", "drafter", "vq_decoder", "vq_encoder", "codebook", "neighbours"}
    index = read_index(folder)
    assert set(index.models) == names
    assert (index.family, index.resolutions[0].drafter) == ("llamagen", "drafter")
    assert all(manifest(name, folder).export is not None for name in names)
    assert not list(folder.glob(".*"))
    target_manifest = manifest("target", folder)
    assert target_manifest.settings["precision"] == "fp32"
    assert max(target_manifest.parity.values()) < 1e-4
    assert set(target_manifest.parity) == {"random", "first_code", "last_code", "tree", "one_row"}
    with np.load(folder / "neighbours.npz") as table:
        assert table["neighbours"].shape == (VOCAB, 24)
        assert table["neighbours"].dtype == np.uint16


def test_a_tree_and_a_chain_decode_alike(folder: Path) -> None:
    """At temperature 0 a draft tree on the exported drafter draws what one token a pass draws."""
    sampler = SamplingParams(guidance=2.0, temperature=0)
    target = EngineTarget.open("target", sampler, folder, ONE_THREAD)
    drafter = EngineDrafter.open("drafter", sampler, folder, ONE_THREAD)
    target.prepare(target.encoder.of_ids(np.array([3])))
    alone = decode(target, None, Eagle2(2, 2, 4), PointProposals(), sampling(0))
    drafted = decode(target, drafter, Eagle2(2, 2, 4), PointProposals(), sampling(0), max_nodes=8)
    np.testing.assert_array_equal(alone.tokens, drafted.tokens)


def test_check_reports_every_output(folder: Path) -> None:
    results = {result.name: result for result in verify(folder, True, 1)}
    assert set(results) == {"target", "drafter", "vq_decoder", "vq_encoder"}
    assert set(results["vq_decoder"].report.cases["random"]) == {"pixels"}
    assert all(result.passed for result in results.values())
    assert set(results["target"].report.cases["random"]) == {"logits", "features", "key", "value"}
    assert results["target"].report.parting is None
    assert "greedy decoding draws the same picture" in "\n".join(results["target"].lines())


def test_captions_go_through_their_own_graph(tmp_path: Path) -> None:
    model = save_llamagen(tmp_path / "t2i.pt", captions=True)
    export_checkpoint(Request("llamagen-t2i", tmp_path / "t2i.pt", options=TINY), tmp_path / "out")
    verdict = {result.name: result for result in verify(tmp_path / "out", False, 0)}["condition"]
    assert verdict.passed
    assert verdict.report.worst()["large"] < 1e-5
    target = EngineTarget.open("target", SamplingParams(), tmp_path / "out", ONE_THREAD)
    with pytest.raises(EngineError, match="asked by features"):
        target.prepare(target.encoder.of_ids(np.array([1, 2, 3])))
    caption = noise(3, 12)
    session = open_session(tmp_path / "out" / "condition.onnx", ONE_THREAD)
    rows = session.run(None, {"features": caption.numpy()})[0]
    target.prepare(target.encoder.of_rows(rows))
    with torch.no_grad():
        logits, _ = model(torch.zeros(1, 0, dtype=torch.int64), caption[None])
    np.testing.assert_allclose(target.begin().probs[0], logits[0, 0].softmax(-1).numpy(), atol=1e-5)
    # A caption of two rows: the first position is padding that nothing sees.
    target.prepare(target.encoder.of_rows(rows, padding=1))
    once = target.begin().probs[0]
    rows[0] += 100
    target.prepare(target.encoder.of_rows(rows, padding=1))
    np.testing.assert_allclose(target.begin().probs[0], once, atol=1e-6)
    with pytest.raises(EngineError, match="condition: expected rows"):
        target.prepare(target.encoder.of_rows(rows[:4]))


@pytest.mark.parametrize("precision", ["fp16", "bf16"])
def test_half_precision_stays_close(tmp_path: Path, precision: str) -> None:
    save_dtok(tmp_path / "dtok.pth")
    options = LoadOptions(heads=HEADS, prefix=6)
    out = tmp_path / "out"
    export_checkpoint(Request("tar-dtok", tmp_path / "dtok.pth", precision, options), out)
    assert manifest("target", out).settings["precision"] == precision
    results = {result.name: result for result in verify(out, True, 0)}
    assert set(results) == {"target", "condition"}
    assert all(result.passed for result in results.values())
    assert set(results["condition"].report.cases) == {"random", "absent", "large"}
    with pytest.raises(EngineError, match="expected a float32 export"):
        EngineTarget.open("target", SamplingParams(), out, ONE_THREAD)


def test_the_golden_case_comes_out_of_onnx_runtime(tmp_path: Path) -> None:
    case, model = golden_transformer()
    torch.save(model.state_dict(), tmp_path / "golden.pt")
    options = LoadOptions(heads=model.config.n_head, grid_side=model.config.grid_side)
    export_checkpoint(Request("llamagen-c2i", tmp_path / "golden.pt", options=options), tmp_path / "out")
    target = EngineTarget.open("target", SamplingParams(guidance=1.0), tmp_path / "out", ONE_THREAD)
    engine = target.engine
    for row, cond in enumerate(case["cond"]):
        engine.begin()
        fed = np.array([model.config.vocab_size + int(cond)])
        for cell in range(case["tokens"].shape[1]):
            output = engine.run(fed, np.array([cell - 1]), np.zeros((1, 1), dtype=np.float32))
            np.testing.assert_allclose(output.logits[0, 0], case["logits"][row, cell], atol=1e-4)
            engine.cache.commit(slice(None))
            fed = case["tokens"][row, cell : cell + 1]


def test_weights_lie_once_beside_the_graph(tmp_path: Path) -> None:
    save_llamagen(tmp_path / "c2i.pt", captions=False)
    out = tmp_path / "out"
    export_checkpoint(Request("llamagen-c2i", tmp_path / "c2i.pt", options=TINY), out)
    data, target_manifest = out / "target.safetensors", manifest("target", out)
    weights = load_file(data)
    assert weights["layers.1.down"].shape == (96, 32)
    assert target_manifest.weights is not None
    assert sum(value.nbytes for value in weights.values()) > 10 * target_manifest.bytes / 4
    check(target_manifest, out)
    target = EngineTarget.open("target", SamplingParams(), out, ONE_THREAD)
    target.prepare(target.encoder.of_ids(np.array([1])))
    target.begin()
    data.write_bytes(data.read_bytes()[:-1])
    with pytest.raises(ManifestError, match=r"target\.safetensors: expected .* bytes"):
        check(target_manifest, out)


def test_a_failed_export_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save_llamagen(tmp_path / "c2i.pt", captions=False)
    request = Request("llamagen-c2i", tmp_path / "c2i.pt", options=TINY)

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(checkpoint, "codebook_of", full)
    with pytest.raises(OSError, match="No space left"):
        export_checkpoint(request, tmp_path / "out")
    assert not (tmp_path / "out").exists()
    monkeypatch.undo()
    monkeypatch.setitem(decoders.MOST, "fp32", 0.0)
    with pytest.raises(ValueError, match="nothing was written"):
        export_checkpoint(request, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_full_disk_is_said_and_the_folder_stays(folder: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    shutil.copytree(folder, out)
    before = {file.name: file.read_bytes() for file in out.iterdir()}
    request = Request("llamagen-c2i", folder.parent / "c2i.pt", options=TINY)
    for place in (out, tmp_path / "new"):
        with files_of_at_most(50_000), pytest.raises(OSError, match=rf"{place}, which stays as it was; make room"):
            export_checkpoint(request, place)
    assert before == {file.name: file.read_bytes() for file in out.iterdir()}
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize("name", ["vq_encoder.onnx", "neighbours.npz", "codebook.npz", "drafter.onnx"])
def test_check_finds_every_damaged_model(folder: Path, tmp_path: Path, name: str) -> None:
    out = tmp_path / "out"
    shutil.copytree(folder, out)
    (out / name).write_bytes((out / name).read_bytes()[:-7])
    with pytest.raises(ManifestError, match=f"{name}: expected .* bytes"):
        next(verify(out, False, 0))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda record: record["request"].pop("options"), "request lacks its parts"),
        (lambda record: record["request"]["options"].update(unknown=1), "request lacks its parts"),
        (lambda record: record.update(request=None), "export: request"),
        (lambda record: record.pop("opset"), "missing setting opset"),
        (
            lambda record: record["request"].update(precision="fp16"),
            "settings and request of 'target' tell of different",
        ),
    ],
)
def test_check_names_a_damaged_record(
    folder: Path, tmp_path: Path, change: Callable[[dict[str, Any]], object], message: str
) -> None:
    out = tmp_path / "out"
    shutil.copytree(folder, out)
    target_record = json.loads((out / "target.json").read_text())
    change(target_record["export"])
    (out / "target.json").write_text(json.dumps(target_record))
    result = CliRunner().invoke(underpaint, ["check", str(out), "--no-greedy"])
    assert result.exit_code == 2
    assert message in result.output


def test_check_holds_a_manifest_against_its_model(folder: Path, tmp_path: Path) -> None:
    """Its settings are what engines go by."""
    out = tmp_path / "out"
    shutil.copytree(folder, out)
    target_record = json.loads((out / "target.json").read_text())
    target_record["settings"]["uncond_rows"] = 2
    (out / "target.json").write_text(json.dumps(target_record))
    with pytest.raises(ManifestError, match="settings and request of 'target' tell of different models"):
        next(verify(out, False, 0))


def test_a_wrong_graph_is_found(folder: Path, tmp_path: Path) -> None:
    other = load("llamagen-c2i", folder.parent / "c2i.pt", options=TINY).decoder
    assert other is not None
    with torch.no_grad():
        other.head.weight *= -1
    report = compare(folder / "target.onnx", "fp32", other, None, greedy=True)
    assert min(report.worst().values()) > 1e-2
    assert report.parting is not None


def test_commands(tmp_path: Path) -> None:
    runner = CliRunner()
    save_llamagen(tmp_path / "c2i.pt", captions=False)
    out = tmp_path / "out"
    options = ["--kind", "llamagen-c2i", "--heads", str(HEADS), "--grid", str(SIDE), "--out", str(out)]
    result = runner.invoke(underpaint, ["export", str(tmp_path / "c2i.pt"), *options])
    assert result.exit_code == 0, result.output
    result = runner.invoke(underpaint, ["check", str(out)])
    assert result.exit_code == 0, result.output
    assert "target (fp32): passed" in result.output
    lines = [line for line in result.output.splitlines() if "Provider" in line]
    assert len(lines) == 1, "one for each provider that the machine has"
    assert re.fullmatch(r"cpu \(CPUExecutionProvider\): passed, largest error [0-9.e-]+ of target", lines[0])
    for arguments, message in (
        ([str(tmp_path / "none.pt"), *options], "no checkpoint at"),
        ([str(tmp_path / "c2i.pt"), "--kind", "vq", "--out", str(out)], "use --kind llamagen-c2i"),
        ([str(tmp_path / "c2i.pt"), *options, "--precision", "int4"], "--precision"),
        ([str(tmp_path / "c2i.pt"), *options, "--target", "x"], "--target does not go with --kind llamagen-c2i"),
        ([str(tmp_path / "c2i.pt"), *options, "--out", "/proc/out"], "cannot write into /proc/out"),
    ):
        result = runner.invoke(underpaint, ["export", *arguments])
        assert result.exit_code == 2
        assert message in result.output
    target_record = json.loads((out / "target.json").read_text())
    target_record["export"]["checkpoint_sha256"] = "0"
    (out / "target.json").write_text(json.dumps(target_record))
    result = runner.invoke(underpaint, ["check", str(out)])
    assert result.exit_code == 2
    assert "another checkpoint" in result.output
    assert "no model_index.json" in runner.invoke(underpaint, ["check", str(tmp_path)]).output


@pytest.mark.parametrize(
    ("chosen", "refused"),
    [
        ("llamagen-c2i --first-code 3", "--first-code does not go with --kind llamagen-c2i, which takes --precision"),
        ("llamagen-c2i --uncond-keep 1 1", "--uncond-keep does not go with"),
        ("llamagen-c2i --target x --target-kind llamagen-c2i", "does not go with --kind llamagen-c2i"),
        ("llamagen-t2i --prefix 8", "--prefix does not go with"),
        ("tar-dtok --layout anole", "--layout does not go with"),
        ("tar-lm --neighbours 5", "--neighbours does not go with"),
        ("chameleon --heads 4", "--heads does not go with"),
        ("vq --grid 16", "--grid does not go with --kind vq, which takes --precision, --neighbours; leave it out"),
        ("chameleon-vq --eight-bits", "--eight-bits does not go with"),
        ("sampler --neighbours 5", "--neighbours does not go with --kind sampler, which takes --precision; leave it"),
        ("sampler --heads 4", "--heads does not go with"),
        ("eagle-drafter --target x --target-kind llamagen-c2i --prefix 5", "--prefix does not go with"),
        (
            "eagle-drafter --target none.pt --target-kind tar-lm --grid 4 --first-code 3 --eight-bits",
            "no checkpoint at",
        ),
        ("nobody --grid 4", "--kind: expected one of"),
    ],
)
def test_an_option_that_a_kind_does_not_read_is_refused(tmp_path: Path, chosen: str, refused: str) -> None:
    command = ["export", str(tmp_path / "none.pt"), "--out", str(tmp_path / "out"), "--kind", *chosen.split()]
    result = CliRunner().invoke(underpaint, command)
    assert result.exit_code == 2
    assert refused in result.output
    assert not (tmp_path / "out").exists()


def test_the_options_of_every_kind_are_known() -> None:
    expected = f"{', '.join(KINDS)} or sampler"
    assert expected == _KINDS
    assert {name for spec in FAMILIES for name in spec.options} <= signature(export).parameters.keys()


def test_check_runs_the_graphs_on_every_provider(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On two that stand in: one on a device that is memory of the host, one without the libraries that it needs."""

    def opened(path: Path, model: object, backend: GpuBackend, options: object, graphs: bool) -> tuple[object, bool]:
        assert not graphs, "a float32 graph has branches"
        if backend.name == "tensorrt-ep":
            raise EngineError("it needs libraries")
        return open_session(path, EngineContext(threads=1)), graphs

    monkeypatch.setattr(providers, "open_on_gpu", opened)
    monkeypatch.setattr(
        providers, "available_providers", lambda: ("TensorrtExecutionProvider", "CUDAExecutionProvider")
    )
    monkeypatch.setattr("underpaint.export.verify.check_provider", lambda backend: None)
    monkeypatch.setattr(
        OnnxDecoder, "buffers", lambda decoder, rows: DeviceBuffers(decoder.session, decoder.config, rows, "cpu")
    )
    result = CliRunner().invoke(underpaint, ["check", str(folder), "--no-greedy"])
    assert result.exit_code == 0, result.output
    cpu, cuda, tensorrt = (line for line in result.output.splitlines() if "Provider" in line)
    assert cuda.replace("cuda (CUDA", "cpu (CPU") == cpu
    assert re.fullmatch(r"cuda \(CUDAExecutionProvider\): passed, largest error [0-9.e-]+ of target, drafter.*", cuda)
    assert tensorrt == "tensorrt-ep (TensorrtExecutionProvider): not run: it needs libraries"


def test_a_provider_that_computes_something_else_fails(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    right = tuple(verify(folder, False, 0))
    wrong = replace(right[0], allowed=0.0)
    monkeypatch.setattr("underpaint.export.verify.verify_providers", lambda *args: [ProviderResult("cuda", (wrong,))])
    result = CliRunner().invoke(underpaint, ["check", str(folder), "--no-greedy"])
    assert result.exit_code == 1
    assert "cuda (CUDAExecutionProvider): FAILED, largest error" in result.output


def test_help_has_the_options_of_both_forms() -> None:
    result = CliRunner().invoke(underpaint, ["export", "--help"], env={"COLUMNS": "300"})
    assert result.exit_code == 0
    for each in (*KINDS, "--precision", "--target-kind", "--first-code", "--neighbours", "--runs", "superres_64_256"):
        assert each in result.output
    result = CliRunner().invoke(underpaint, ["export", "c2i_B_256.pt", "--out", "x"])
    assert result.exit_code == 2
    assert "A published checkpoint needs --kind" in result.output


def test_every_method_runs_on_exported_engines(folder: Path, tmp_path: Path) -> None:
    runner = CliRunner()
    common = ["compare", "1", "3", "--preset", "tuned", "--models", str(folder), "--top-k", "0"]
    methods = [method.name for method in METHODS if not method.name.startswith("mulo")]  # those need two resolutions
    for method in ("lantern", "adt+lantern", "roofline+lantern"):
        common += ["--set", f"{method}.k=0"]  # all of a table narrower than the default asks for
    for method in ("zipar", "zipar-adaptive"):
        common += ["--set", f"{method}.window=2"]  # the tuned windows are wider than this grid
    for method in ("lantern", "vvs"):
        common += ["--set", f"{method}.total_tokens=8"]  # the tuned trees have more nodes than these engines take
    for temperature in ("0", "1"):
        out = tmp_path / temperature
        rest = ["--temperature", temperature, "--methods", ",".join(methods), "--out", str(out)]
        result = runner.invoke(underpaint, [*common, *rest])
        assert result.exit_code == 0, result.output
        report = json.loads((out / "compare.json").read_text())
        assert set(report["model"]["sha256"]) == {"target", "drafter", "vq_decoder", "codebook", "neighbours"}
        rows = {row["method"]: row for row in report["rows"]}
        assert set(rows) == set(methods)
        assert rows["ar"]["target_nfe"] == SIDE**2
        assert (out / "gallery.png").is_file()
        if temperature == "0":
            assert all(row["identical_share"] == 1 for row in rows.values() if row["lossless"])
    for arguments, message in (
        (["99"], "class must be between 0 and 5, got 99"),
        (["x"], "expected a class"),
        (["x.npy"], "no file at"),
        (["1", "--models", str(tmp_path)], "model_index"),
        (["1", "--models", str(tmp_path / "none")], "no folder"),
        (["1", "--backend", "gpu"], "expected one of cpu, tensorrt, tensorrt-rtx"),
        (["1", "--top-p", "2"], "top_p must be"),
        (["1", "--resolution", "64"], "resolution 64: the folder draws"),
        (["1", "--prompts-count", "3"], "leave the prompts out"),
        (["1", "--json", "/proc/figures.json"], "cannot write into /proc"),
        (["1", "--out", str(tmp_path / "0"), "--temperature", "0.5"], "belongs to another comparison"),
    ):
        rest = ["--models", str(folder), "--methods", "ar", "--out", str(tmp_path / "bad"), *arguments]
        result = runner.invoke(underpaint, ["compare", *rest])
        assert result.exit_code == 2
        assert re.search(message, result.output), result.output
    assert not (tmp_path / "bad").exists()


def test_a_drafter_is_not_refused_for_float32s_own_rounding(tmp_path: Path) -> None:
    """Attention over a large grid, without a norm before it, turns a rounding of large features into an error."""
    options = LoadOptions(heads=HEADS, grid_side=32)
    save_llamagen(tmp_path / "c2i.pt", captions=False)
    save_file(eagle_weights(), tmp_path / "eagle.safetensors")
    pair = ("llamagen-c2i", tmp_path / "c2i.pt")
    request = Request("eagle-drafter", tmp_path / "eagle.safetensors", target=pair, target_options=options)
    (written,) = export_checkpoint(request, tmp_path / "out")
    assert written.parity["large_features"] < 3e-5
    decoder = request.loaded().decoder
    assert decoder is not None
    case, sizes = prepare(tmp_path / "out" / "drafter.onnx", "fp32", decoder, None, 0), []
    for weight in (1.0, 0.05):
        with torch.no_grad():
            decoder.get_parameter("layers.0.qkv.weight").mul_(weight)
        features, _ = _distinguishable_features(case, np.arange(1024) % VOCAB, LARGE["fp32"], np.random.default_rng(0))
        sizes.append(round(float(features.std())))
    assert sizes == [3, 30]

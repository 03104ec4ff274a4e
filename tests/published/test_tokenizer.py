"""A published tokenizer in every precision, through ONNX Runtime; LlamaGen's own golden case among them."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch

from tests.models.test_golden import load_case, regenerate
from tests.published.checkpoints import HEADS, SIDE, VOCAB, save_llamagen, save_vq
from underpaint.algos.protocols import Grid
from underpaint.export.checkpoint import Request, export_checkpoint
from underpaint.models.config import build
from underpaint.models.published.files import CheckpointError
from underpaint.models.published.options import LoadOptions
from underpaint.models.vq import VQConfig, VQModel
from underpaint.runtime.engines.context import EngineContext, EngineError, open_session
from underpaint.runtime.engines.images import ImageDecoder, ImageEncoder
from underpaint.zoo.load import manifest

ONE_THREAD = EngineContext(threads=1)


@pytest.fixture(scope="module", params=["fp32", "fp16"])
def golden(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Path]:
    """The golden case's tokenizer, exported in a precision."""
    case, work = load_case("llamagen_vq_tiny"), tmp_path_factory.mktemp("golden")
    model = VQModel(build(VQConfig, case["config"])).eval()
    with torch.no_grad():
        regenerate(model, case["manifest"], 0.03)
    torch.save({"model": model.state_dict()}, work / "vq.pt")
    export_checkpoint(Request("vq", work / "vq.pt", request.param, neighbours=4), work / "out")
    return request.param, work / "out"


def test_the_golden_case_comes_out_of_onnx_runtime(golden: tuple[str, Path]) -> None:
    precision, folder = golden
    case = load_case("llamagen_vq_tiny")
    codes, side = case["codes"], round(case["codes"].shape[1] ** 0.5)
    decoder = open_session(folder / "vq_decoder.onnx", ONE_THREAD)
    decoded = decoder.run(None, {"codes": codes.reshape(1, side, side)})[0]
    np.testing.assert_allclose(decoded, case["decoded"], atol=1e-4 if precision == "fp32" else 0.02)
    encoder = open_session(folder / "vq_encoder.onnx", ONE_THREAD)
    scores = encoder.run(None, {"pixels": case["pixels"]})[0]
    np.testing.assert_array_equal(scores.argmax(axis=-1).ravel(), case["encoded"])
    assert decoded.dtype == scores.dtype == np.float32
    for name in ("vq_decoder", "vq_encoder"):
        model_manifest = manifest(name, folder)
        assert model_manifest.settings["precision"] == precision
        assert max(model_manifest.parity.values()) < (1e-4 if precision == "fp32" else 0.05)


def test_half_precision_halves_the_file_and_draws(golden: tuple[str, Path]) -> None:
    precision, folder = golden
    cells = np.zeros(6, dtype=np.int64)
    picture = ImageDecoder(folder=folder, settings=ONE_THREAD)(cells, Grid(2, 3))
    assert ImageEncoder(folder=folder, settings=ONE_THREAD)(picture).shape == (6,)
    kinds = {each.type for each in open_session(folder / "vq_decoder.onnx", ONE_THREAD).get_inputs()}
    assert kinds == {"tensor(int64)"}
    import onnx

    weights = onnx.load(folder / "vq_decoder.onnx").graph.initializer
    kernels = [each for each in weights if len(each.dims) == 4]
    expected_type = onnx.TensorProto.FLOAT16 if precision == "fp16" else onnx.TensorProto.FLOAT
    narrow = [each for each in kernels if each.data_type == expected_type]
    # Attention's projections stay in float32, whichever way their numbers are stored.
    assert len(narrow) >= len(kernels) / 2


def test_a_bfloat16_tokenizer_which_nothing_runs_is_refused(tokenizer: Path, tmp_path: Path) -> None:
    save_vq(tmp_path / "vq.pt")
    with pytest.raises(ValueError, match="--precision bf16: expected fp32 or fp16 of a tokenizer"):
        export_checkpoint(Request("vq", tmp_path / "vq.pt", "bf16", neighbours=VOCAB - 1), tmp_path / "out")
    assert not (tmp_path / "out").exists()
    shutil.copytree(tokenizer, tmp_path / "out")
    path = tmp_path / "out" / "vq_decoder.json"  # as an earlier version wrote it
    record = json.loads(path.read_text())
    path.write_text(json.dumps(record | {"settings": record["settings"] | {"precision": "bf16"}}))
    with pytest.raises(EngineError, match="export the tokenizer again with --precision fp32 or fp16"):
        ImageDecoder(folder=tmp_path / "out")


def test_a_tokenizer_that_overflows_float16_is_refused(tmp_path: Path) -> None:
    model = save_vq(tmp_path / "vq.pt")
    with torch.no_grad():
        model.decoder.conv_out.weight.fill_(1e6)
    torch.save({"model": model.state_dict()}, tmp_path / "vq.pt")
    with pytest.raises(CheckpointError, match=r"decoder\.conv_out\.weight not finite as torch\.float16"):
        export_checkpoint(Request("vq", tmp_path / "vq.pt", "fp16"), tmp_path / "out")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("count", [0, VOCAB, 100_000_000])
def test_more_neighbours_than_other_codes_are_refused(tmp_path: Path, count: int) -> None:
    save_vq(tmp_path / "vq.pt")
    with pytest.raises(
        ValueError, match=f"--neighbours: expected 1 to {VOCAB - 1}, as this checkpoint has {VOCAB} codes"
    ):
        export_checkpoint(Request("vq", tmp_path / "vq.pt", neighbours=count), tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_neighbours_are_of_checkpoints_with_codes(tmp_path: Path) -> None:
    save_llamagen(tmp_path / "c2i.pt", captions=False)
    options = LoadOptions(heads=HEADS, grid_side=SIDE)
    with pytest.raises(ValueError, match="--neighbours goes with vq, chameleon, chameleon-vq"):
        export_checkpoint(Request("llamagen-c2i", tmp_path / "c2i.pt", options=options, neighbours=5), tmp_path / "out")
    assert not (tmp_path / "out").exists()

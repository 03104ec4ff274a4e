"""Methods that draft small and verify large, on two export folders: drawn, equal to AR where they must be, refused."""

import json
import re
import shutil
from pathlib import Path

import numpy as np
import pytest
from safetensors.torch import save_file
from typer.testing import CliRunner

from tests.published.checkpoints import HEADS, eagle_weights, save_llamagen
from underpaint.algos.chance import Role
from underpaint.algos.protocols import Grid
from underpaint.algos.rows import SamplingParams
from underpaint.algos.spatial.zipar import zipar
from underpaint.artifacts.index_writer import write_index
from underpaint.artifacts.manifest import ManifestError
from underpaint.artifacts.model_index import INDEX
from underpaint.cli.app import app as underpaint
from underpaint.export.checkpoint import Request, export_checkpoint
from underpaint.export.store import Origin, staged
from underpaint.export.tokenizer import store_codes
from underpaint.models.published.options import LoadOptions
from underpaint.runtime.conditions import parse_condition
from underpaint.runtime.drawing import Drawing, draw, noise_of
from underpaint.runtime.engines.context import EngineContext, EngineError
from underpaint.runtime.methods.registry import METHODS, build_method, resolve
from underpaint.runtime.methods.settings import overridden
from underpaint.runtime.pipeline import Pipeline
from underpaint.zoo.load import read_codebook

SIDE = 8
TINY = LoadOptions(heads=HEADS, grid_side=SIDE)
HALF = LoadOptions(heads=HEADS, grid_side=SIDE // 2)
ONE_THREAD = EngineContext(threads=1)
WARM, COLD = SamplingParams(guidance=2.0), SamplingParams(guidance=2.0, temperature=0.0)
ASKED = parse_condition("3", "ids")
EVERY_METHOD = tuple(method.name for method in METHODS)
MULTI_SCALE = ("mulo", "mulo-islands", "mulo-raster")
BICUBIC = tuple(f"--set={name}.{each}" for name in MULTI_SCALE for each in ("resampler=bicubic", "k=none"))


def export_pair(work: Path, tokenizer: Path, captions: bool) -> tuple[Path, Path]:
    """The folders of a target with its drafter, and of a target at half the side; one tokenizer."""
    kind = "llamagen-t2i" if captions else "llamagen-c2i"
    save_file(eagle_weights(), work / "eagle.safetensors")
    for name, options, seed in (("high", TINY, 3), ("low", HALF, 4)):
        save_llamagen(work / f"{name}.pt", captions, seed)
        shutil.copytree(tokenizer, work / name)
        export_checkpoint(Request(kind, work / f"{name}.pt", options=options), work / name)
    pair = (kind, work / "high.pt")
    export_checkpoint(
        Request("eagle-drafter", work / "eagle.safetensors", target=pair, target_options=TINY), work / "high"
    )
    return work / "high", work / "low"


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory, tokenizer: Path) -> tuple[Path, Path]:
    return export_pair(tmp_path_factory.mktemp("pair"), tokenizer, captions=False)


@pytest.fixture(scope="module")
def pipeline(folders: tuple[Path, Path]) -> Pipeline:
    return Pipeline.open(folders[0], context=ONE_THREAD, low=folders[1])


def drawn(pipeline: Pipeline, sampler: SamplingParams, method: str, *settings: str) -> Drawing:
    defaults = ["resampler=bicubic", "k=none", "window=none"] if method in MULTI_SCALE else []
    config = resolve(method, sampler.temperature, settings=overridden(defaults, settings))
    return draw(pipeline, build_method(method, config, pipeline.tables), sampler, ASKED, 5)


@pytest.mark.parametrize("sampler", [WARM, COLD], ids=["sampled", "greedy"])
@pytest.mark.parametrize("method", ["mulo", "mulo-raster"])
@pytest.mark.parametrize("rows", ["none", "1"])
def test_a_threshold_above_one_is_plain_autoregression(
    pipeline: Pipeline, sampler: SamplingParams, method: str, rows: str
) -> None:
    cells = drawn(pipeline, sampler, "zipar", "window=none")
    drawing = drawn(pipeline, sampler, method, "tau=1.5", f"rows={rows}")
    assert drawing.tokens == cells.tokens
    assert drawing.kept_cells == ()
    if sampler is COLD:
        assert drawing.tokens == drawn(pipeline, sampler, "ar").tokens


def test_the_exact_rule_with_raster_rejection_draws_what_ar_draws_at_temperature_zero(pipeline: Pipeline) -> None:
    expected = drawn(pipeline, COLD, "ar").tokens
    for rows in ("1", "none"):
        assert drawn(pipeline, COLD, "mulo-raster", "rule=exact", f"rows={rows}").tokens == expected


@pytest.mark.parametrize("method", MULTI_SCALE)
@pytest.mark.parametrize("kind", ["bicubic", "nearest"])
def test_a_threshold_of_zero_keeps_the_enlarged_draft(pipeline: Pipeline, method: str, kind: str) -> None:
    drawing = drawn(pipeline, WARM, method, "tau=0", "draft_window=2", f"resampler={kind}")
    small = zipar(pipeline.low_target(ASKED, WARM, 2).model, 2, noise_of(ASKED, 5).cycle(1), role=Role.DRAFT)
    resampler = pipeline.resampler(kind, 2)
    assert (resampler.map.low, resampler.map.high) == (Grid(4, 4), Grid(8, 8))
    assert drawing.tokens == tuple(resampler.enlarge(small.tokens, range(4)))
    assert drawing.target_nfe == 2
    assert (drawing.kept_cells, drawing.rejected) == (tuple(range(SIDE**2)), 0)


def test_every_method_runs_beside_each_other(folders: tuple[Path, Path], tmp_path: Path) -> None:
    high, low = folders
    common = [
        *("compare", "--preset", "tuned"),
        "1",
        "3",
        "--models",
        str(high),
        "--low",
        str(low),
        "--top-k",
        "0",
        "--save-pictures",
        *BICUBIC,
    ]
    common += [f"--set={method}.k=0" for method in ("lantern", "adt+lantern", "roofline+lantern")]
    for temperature in ("0", "1"):
        out = tmp_path / temperature
        rest = ["--temperature", temperature, "--methods", ",".join(EVERY_METHOD), "--out", str(out)]
        result = CliRunner().invoke(underpaint, [*common, *rest])
        assert result.exit_code == 0, result.output
        report = json.loads((out / "compare.json").read_text())
        assert {row["method"] for row in report["rows"]} == set(EVERY_METHOD)
        assert report["model"]["low"]["grids"] == [[SIDE // 2, SIDE // 2]]
        assert set(report["model"]["low"]["sha256"]) == {"target", "codebook"}
        assert "vq_encoder" in report["model"]["sha256"]
        rows = {row["method"]: row for row in report["rows"]}
        assert rows["mulo"]["drafter_nfe"] > 0
        assert (out / "gallery.png").is_file()
        assert (out / "pictures" / "mulo-islands" / "0001-seed0.png").is_file()
        if temperature == "0":
            assert all(row["identical_share"] == 1 for row in rows.values() if row["lossless"])


def test_captions_condition_both_targets(tmp_path: Path, tokenizer: Path) -> None:
    high, low = export_pair(tmp_path, tokenizer, captions=True)
    caption = tmp_path / "cat.npy"
    np.save(caption, np.random.default_rng(0).standard_normal((2, 12)))
    common = [
        "compare",
        str(caption),
        "--preset",
        "tuned",
        "--models",
        str(high),
        "--low",
        str(low),
        "--top-k",
        "0",
        "--temperature",
        "0",
    ]
    settings = ["--set", "mulo-raster.rule=exact", *BICUBIC]
    result = CliRunner().invoke(
        underpaint, [*common, "--methods", "mulo,mulo-islands,mulo-raster", *settings, "--out", str(tmp_path / "drawn")]
    )
    assert result.exit_code == 0, result.output
    report = json.loads((tmp_path / "drawn" / "compare.json").read_text())
    assert set(report["model"]["low"]["sha256"]) == {"target", "condition", "codebook"}
    rows = {row["method"]: row for row in report["rows"]}
    assert rows["mulo-raster"]["lossless"]
    assert rows["mulo-raster"]["identical_share"] == 1


@pytest.mark.parametrize(
    ("method", "settings", "message"),
    [
        ("mulo", ("ratio=4",), r"ratio 4: --low holds a target at 1 / 2 of the side; say --set METHOD.ratio=2"),
        ("mulo", ("resampler=latent",), r"no model 'sampler_up_8_16'.*--from 8 --to 16.*nearest, bicubic"),
        ("mulo", ("resampler=superres",), r"no model 'superres_8_16'"),
        ("mulo", ("resampler=bicubik",), "did you mean 'bicubic'"),
        ("mulo", ("rows=5",), "rows: expected 1..4 low rows"),
        ("mulo-islands", ("draft_window=5",), "draft_window: expected 1..4"),
    ],
)
def test_settings_that_do_not_fit_are_refused_before_any_pass(
    pipeline: Pipeline, method: str, settings: tuple[str, ...], message: str
) -> None:
    before = pipeline.low_target(ASKED, WARM, 2).timer.passes
    with pytest.raises(ValueError, match=message):
        drawn(pipeline, WARM, method, *settings)
    assert pipeline.low_target(ASKED, WARM, 2).timer.passes == before


def test_without_a_second_folder_the_remedy_is_named(folders: tuple[Path, Path]) -> None:
    with pytest.raises(
        EngineError,
        match=r"holds no target of 4 x 4 codes to draft with; it holds none smaller: give the export of one with --low",
    ):
        drawn(Pipeline.open(folders[0], context=ONE_THREAD), WARM, "mulo")


def test_folders_that_do_not_belong_together_are_refused(folders: tuple[Path, Path], tmp_path: Path) -> None:
    high, low = folders

    def refused(message: str, small: Path = tmp_path, error: type[ValueError] = EngineError) -> None:
        with pytest.raises(error, match=message):
            Pipeline.open(high, context=ONE_THREAD, low=small)

    refused("--low .*none: no folder", tmp_path / "none", ManifestError)
    refused("expected a smaller grid than 8 x 8, and a whole fraction of it, got 8 x 8", high)
    for name, options, message in (
        ("third", LoadOptions(heads=HEADS, grid_side=5), "expected a smaller grid than 8 x 8, .* got 5 x 5"),
        ("wide", LoadOptions(heads=HEADS, grid_side=12), "got 12 x 12"),
    ):
        shutil.copytree(low, tmp_path / name)
        export_checkpoint(Request("llamagen-c2i", low.parent / "low.pt", options=options), tmp_path / name)
        refused(message, tmp_path / name)
    save_llamagen(tmp_path / "t2i.pt", captions=True)
    shutil.copytree(low, tmp_path / "captions")
    export_checkpoint(Request("llamagen-t2i", tmp_path / "t2i.pt", options=HALF), tmp_path / "captions")
    refused(
        r"expected a target that takes 1 id\(s\) from 0 to 5, as .* takes features \[1 to 3, 12\]",
        tmp_path / "captions",
    )
    shutil.copytree(low, tmp_path / "codes")
    with staged(tmp_path / "codes") as aside:
        store_codes(read_codebook(low)[::-1], 24, aside, Origin("", ""))
    refused("expected the codebook .* one tokenizer", tmp_path / "codes")
    for part, message in (("codebook.json", "lacks codebook"), (INDEX, "older format; make the folder again")):
        (tmp_path / "lacking").mkdir()
        shutil.copytree(low, tmp_path / "lacking", dirs_exist_ok=True)
        (tmp_path / "lacking" / part).unlink()
        refused(message, tmp_path / "lacking", ManifestError)
        shutil.rmtree(tmp_path / "lacking")


def test_the_command_refuses_before_any_work(folders: tuple[Path, Path], tmp_path: Path) -> None:
    high, low = folders
    blind = tmp_path / "blind"
    shutil.copytree(high, blind)
    (blind / "vq_encoder.json").unlink()
    write_index(blind)
    drawing = ["compare", "1", "--methods", "mulo", "--top-k", "0", "--out", str(tmp_path / "out")]
    for arguments, message in (
        (["--low", str(low)], "expected the codebook"),
        (["--models", str(high)], "with --low"),
        (["--models", str(high), "--low", str(tmp_path / "none")], "no folder"),
        (["--models", str(blind), "--low", str(low)], "holds no vq_encoder.*export its tokenizer"),
        (["--models", str(high), "--low", str(low), "--set", "mulo.resampler=latent"], "no model 'sampler_up_8_16'"),
        (["--models", str(high), "--low", str(low), "--set", "mulo.k=1000"], "expected k in"),
        (["--models", str(high), "--low", str(low), "99"], "class must be between 0 and"),
    ):
        argument_names = [one.partition("=")[0] for one in arguments]
        chosen = [one for one in BICUBIC[:2] if one.removeprefix("--set=").partition("=")[0] not in argument_names]
        result = CliRunner().invoke(underpaint, [*drawing, *chosen, *arguments])
        assert result.exit_code == 2, result.output
        assert re.search(message, result.output.replace("\n", " ")), result.output
    assert not (tmp_path / "out").exists()

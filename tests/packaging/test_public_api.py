"""The two distributions as a user installs them, in folders of the user's own."""

import shutil
import subprocess
import sys
import venv
import zipfile
from pathlib import Path

import pytest

import underpaint
from tests.conftest import Wheels

ROOT = Path(__file__).resolve().parents[2]
MOST_CORE_BYTES, MOST_ZOO_BYTES = 3_000_000, 60 * 2**20

USE = """
import sys
import underpaint
loaded = [name for name in ("numpy", "onnxruntime", "matplotlib", "typer") if name in sys.modules]
assert not loaded, f"import underpaint loads {loaded}"
import models, sim
assert models.OWNER == sim.OWNER == "somebody else"
assert "site" in underpaint.__file__, underpaint.__file__
assert underpaint.__version__[0].isdigit(), underpaint.__version__

pipeline = underpaint.open_pipeline(resolution=64)
drawing = underpaint.draw(pipeline, "a woolly fox left of an outlined pumpkin", "eagle2", temperature=0)
assert len(drawing.tokens) == 64
assert pipeline.picture(drawing.tokens_array()).shape == (64, 64, 3)
report = underpaint.compare(pipeline, ["eagle2", "adt"], ["a woolly fox left of an outlined pumpkin"], temperature=0)
assert [row.method for row in report.rows] == ["ar", "eagle2", "adt"]
assert all(row.identical_to_ar for row in report.rows)
assert underpaint.exact_report("point").total_variation < 1e-12
point = underpaint.RULES["point"]
import dataclasses
underpaint.register_rule(dataclasses.replace(point, name="mine"))
assert underpaint.exact_report("mine").total_variation < 1e-12
assert underpaint.draw(pipeline, "a woolly fox left of an outlined pumpkin", "eagle2:mine").tokens
"""


def test_every_exported_name_is_there_and_an_unknown_one_is_not() -> None:
    for name in underpaint.__all__:
        assert getattr(underpaint, name) is not None
    assert set(underpaint.__all__) <= set(dir(underpaint))
    with pytest.raises(AttributeError, match="no attribute 'Studio'"):
        underpaint.Studio  # noqa: B018


def test_the_public_functions_are_documented() -> None:
    for name in underpaint.__all__:
        member = getattr(underpaint, name)
        if callable(member):
            assert len((member.__doc__ or "").split()) > 5, name


@pytest.fixture
def site(tmp_path: Path) -> Path:
    """The site-packages of a new environment, which has what Underpaint needs from here, and no Underpaint."""
    place = tmp_path / "venv"
    venv.create(place, system_site_packages=False, with_pip=False)
    (site,) = place.glob("lib/python*/site-packages")
    folders = [path for path in sys.path if path.endswith("site-packages")]
    (site / "needs.pth").write_text("\n".join(folders))
    return site


def unpack(wheel: Path, site: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(site)


def run(site: Path, folder: Path, *arguments: str, **more: str) -> subprocess.CompletedProcess[str]:
    """Run Python with the packages of `site`, in `folder`. more: environment variables."""
    folder.mkdir(exist_ok=True)
    environment = {"PATH": "/usr/bin:/bin", "COLUMNS": "200", "XDG_CACHE_HOME": str(site.parent), **more}
    command = [str(site.parents[2] / "bin" / "python"), *arguments]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, env=environment)


MODELS = "underpaint_zoo/models/"


def test_the_models_are_a_distribution_of_their_own(wheels: Wheels) -> None:
    assert wheels.core.stat().st_size < MOST_CORE_BYTES
    assert wheels.zoo.stat().st_size < MOST_ZOO_BYTES
    core, zoo = (set(zipfile.ZipFile(wheel).namelist()) for wheel in wheels)
    assert {"underpaint/py.typed", "underpaint/runtime/page/page.html", "underpaint/zoo/load.py"} <= core
    assert not [name for name in core if name.endswith((".onnx", ".npz", ".safetensors"))]
    assert not [name for name in core if not name.startswith("underpaint")]
    suffixes = (".json", ".onnx", ".npz", ".safetensors")
    tracked = {path.name: path for path in (ROOT / "zoo").iterdir() if path.suffix in suffixes}
    inside = {name.removeprefix(MODELS): name for name in zoo if name.startswith(MODELS)}
    assert inside.keys() == tracked.keys()
    with zipfile.ZipFile(wheels.zoo) as archive:
        for name, path in tracked.items():
            assert archive.read(inside[name]) == path.read_bytes(), name


NEEDS_NO_MODELS = (
    "certify rule:multi_round --cases 4",
    "exact lantern",
    "simulate sweep --model flat --policies chain --rules chain --machines a100/llamagen-xl --most-images 2",
    "methods",
    "env",
)
NEEDS_MODELS = ("generate fox", "compare --out runs", "prompts", "costs", "premises", "sweep", "evaluate --out runs")


def test_the_core_works_without_the_models_and_says_how_to_get_them(wheels: Wheels, site: Path, tmp_path: Path) -> None:
    unpack(wheels.core, site)
    work = tmp_path / "work"
    for line in NEEDS_NO_MODELS:
        done = run(site, work, "-m", "underpaint", *line.split())
        assert done.returncode == 0, (line, done.stderr)
    shutil.rmtree(work)
    for line in NEEDS_MODELS:
        done = run(site, work, "-m", "underpaint", *line.split())
        assert done.returncode == 2, (line, done.stderr)
        assert "pip install underpaint-zoo" in " ".join(done.stderr.split()), line
        assert list(work.iterdir()) == [], line
    done = run(site, work, "-m", "underpaint", "prompts", UNDERPAINT_ZOO="absent")
    assert done.returncode == 2
    assert "UNDERPAINT_ZOO: expected a folder of models, which holds model_index.json, got absent" in done.stderr
    done = run(site, work, "-m", "underpaint", "prompts", UNDERPAINT_ZOO=str(ROOT / "zoo"))
    assert done.returncode == 0, done.stderr


@pytest.mark.slow
def test_the_wheels_work_in_a_folder_with_its_own_models_and_sim(wheels: Wheels, site: Path, tmp_path: Path) -> None:
    unpack(wheels.core, site)
    unpack(wheels.zoo, site)
    work = tmp_path / "research"
    for name in ("models", "sim", "runtime", "cli"):
        (work / name).mkdir(parents=True)
        (work / name / "__init__.py").write_text('OWNER = "somebody else"\n')
    (work / "use.py").write_text(USE)
    done = run(site, work, "use.py")
    assert done.returncode == 0, done.stderr
    listing = run(site, work, "-m", "underpaint", "methods")
    assert listing.returncode == 0, listing.stderr

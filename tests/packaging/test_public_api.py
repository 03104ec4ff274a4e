"""`import underpaint` from an installed wheel, in a folder that holds its own `models/` and `sim/`."""

import subprocess
import sys
import venv
import zipfile
from pathlib import Path

import pytest

import underpaint

ROOT = Path(__file__).resolve().parents[2]
MOST_WHEEL_BYTES = 60 * 2**20

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


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation"]
    done = subprocess.run([*command, "--wheel-dir", str(folder), str(ROOT)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    (found,) = folder.glob("underpaint-*.whl")
    return found


def test_every_exported_name_is_there_and_an_unknown_one_is_not() -> None:
    for name in underpaint.__all__:
        assert getattr(underpaint, name) is not None
    assert set(underpaint.__all__) <= set(dir(underpaint))
    with pytest.raises(AttributeError, match="no attribute 'Studio'"):
        underpaint.Studio  # noqa: B018


def test_the_public_functions_are_documented() -> None:
    for name in underpaint.__all__:
        found = getattr(underpaint, name)
        if callable(found):
            assert len((found.__doc__ or "").split()) > 5, name


@pytest.mark.slow
def test_the_wheel_holds_the_shipped_models_and_is_small(wheel: Path) -> None:
    assert wheel.stat().st_size < MOST_WHEEL_BYTES
    names = set(zipfile.ZipFile(wheel).namelist())
    shipped = {
        file.name for pattern in ("*.onnx", "*.safetensors", "*.npz", "*.json") for file in ROOT.glob(f"zoo/{pattern}")
    }
    assert {f"underpaint/zoo/{name}" for name in shipped} <= names
    assert "underpaint/py.typed" in names
    assert "underpaint/runtime/page/page.html" in names
    assert not [name for name in names if not name.startswith("underpaint")]


@pytest.mark.slow
def test_the_wheel_works_in_a_folder_with_its_own_models_and_sim(wheel: Path, tmp_path: Path) -> None:
    made = tmp_path / "venv"
    venv.create(made, system_site_packages=False, with_pip=False)
    (site,) = made.glob("lib/python*/site-packages")
    # The wheel alone is unpacked there; what it needs comes from here.
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(site)
    own = [path for path in sys.path if path.endswith("site-packages")]
    (site / "needs.pth").write_text("\n".join(own))
    work = tmp_path / "research"
    for name in ("models", "sim", "runtime", "cli"):
        (work / name).mkdir(parents=True)
        (work / name / "__init__.py").write_text('OWNER = "somebody else"\n')
    (work / "use.py").write_text(USE)
    python = made / "bin" / "python"
    done = subprocess.run(
        [str(python), "use.py"], cwd=work, capture_output=True, text=True, env={"PATH": "/usr/bin:/bin"}
    )
    assert done.returncode == 0, done.stderr
    shown = subprocess.run(
        [str(python), "-m", "underpaint", "methods"],
        cwd=work,
        capture_output=True,
        text=True,
        env={"PATH": "/usr/bin:/bin"},
    )
    assert shown.returncode == 0, shown.stderr

import hashlib
import importlib
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from underpaint.zoo import load

ROOT = Path(__file__).resolve().parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
PACKAGE_DIR = PROJECT["tool"]["setuptools"]["package-dir"]
TOP_LEVEL = tuple(folder for folder in PACKAGE_DIR.values() if folder != "underpaint")
DEVICE_PROGRAMS = ("device.py", "growth.py")
"""In a room of methods: what its methods run on a GPU, imported only where a device is asked for."""
MOST_ZOO_BYTES = 64 * 2**20


@pytest.mark.parametrize("name", TOP_LEVEL)
def test_every_import_name_is_ours(name):
    module = importlib.import_module(f"underpaint.{name}")
    assert Path(module.__file__).resolve() == ROOT / name / "__init__.py"


def test_the_package_list_is_explicit_and_complete():
    here = {
        ".".join(("underpaint", *folder.relative_to(ROOT).parts))
        for top in TOP_LEVEL
        for folder in (ROOT / top, *(ROOT / top).rglob("*"))
        if (folder / "__init__.py").is_file()
    }
    assert set(PROJECT["tool"]["setuptools"]["packages"]) == here | {"underpaint"}
    assert PROJECT["tool"]["setuptools"]["include-package-data"] is False  # or old lists of sources add files
    assert {f"underpaint.{name}": name for name in TOP_LEVEL} | {"underpaint": "underpaint"} == PACKAGE_DIR


def test_every_module_stands_in_a_package():
    stray = [
        str(file.relative_to(ROOT))
        for top in TOP_LEVEL
        for file in (ROOT / top).rglob("*.py")
        if not (file.parent / "__init__.py").is_file()
    ]
    assert stray == []


def test_what_the_command_needs_is_declared():
    assert PROJECT["project"]["scripts"] == {"underpaint": "underpaint.cli.app:main"}
    extras = PROJECT["project"]["optional-dependencies"]
    assert not any(need.startswith("onnxruntime") for need in PROJECT["project"]["dependencies"])
    assert [need.partition(">")[0] for need in extras["cpu"]] == ["onnxruntime"]
    # The two wheels break each other in one environment: no extra brings both, and no other brings the second.
    assert [need.partition(">")[0] for need in extras["gpu"]] == ["onnxruntime-gpu", "torch==2.13.0"]
    others = (need for extra, needs in extras.items() if extra != "gpu" for need in needs)
    assert not any(need.startswith("onnxruntime-gpu") for need in others)
    assert PROJECT["tool"]["uv"]["conflicts"] == [[{"extra": "cpu"}, {"extra": "gpu"}]]


def test_every_requirement_is_pinned():
    pins = {
        line.partition("==")[0].lower().replace("_", "-")
        for line in (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
        if "==" in line
    }
    extras = PROJECT["project"]["optional-dependencies"]
    requirements = [
        *PROJECT["project"]["dependencies"],
        *extras["cpu"],
        *extras["gpu"],
        *extras["train"],
        *extras["dev"],
        *extras["device"],
        *extras["docs"],
    ]
    ranges = [need for need in requirements if "==" not in need]
    names = {need.partition(">")[0].lower().replace("_", "-") for need in ranges} - {"triton"}  # `dev` pins it
    assert names <= pins


def test_drawing_imports_neither_torch_nor_onnx():
    in_torch = (file for room in ("device", "live") for file in (ROOT / "runtime" / room).rglob("*.py"))
    on_gpus = (
        ROOT / "runtime" / "engines" / name
        for name in ("tensorrt_engine.py", "tensorrt_runtime.py", "device_memory.py", "torch_sampling.py")
    )
    programs = [file for name in DEVICE_PROGRAMS for file in (ROOT / "runtime" / "methods").glob(f"*/{name}")]
    lazy_files = {*(ROOT / "cli" / "train").glob("*.py"), *on_gpus, *in_torch, *programs}  # imported only as they run
    modules = sorted(
        ".".join(("underpaint", *file.relative_to(ROOT).with_suffix("").parts)).removesuffix(".__init__")
        for top in ("algos", "artifacts", "sim", "runtime", "zoo", "cli")
        for file in (ROOT / top).rglob("*.py")
        if file not in lazy_files
    )
    program = (
        "import importlib, sys\n"
        f"for name in {modules!r}:\n"
        "    importlib.import_module(name)\n"
        "print(*(name for name in ('torch', 'onnx', 'onnxscript', 'safetensors') if name in sys.modules))\n"
    )
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.split() == []


def test_a_device_program_of_a_method_needs_the_device():
    """Whatever does not is no exception to the test above: it belongs into another module."""
    needs = re.compile(r"^(?:import|from) (?:torch|underpaint\.runtime\.device)\b", re.MULTILINE)
    programs = [file for name in DEVICE_PROGRAMS for file in (ROOT / "runtime" / "methods").glob(f"*/{name}")]
    assert programs
    assert [file for file in programs if not needs.search(file.read_text(encoding="utf-8"))] == []


def test_the_zoo_is_small_enough_to_clone():
    sizes = [file.stat().st_size for file in (ROOT / "zoo").rglob("*") if file.is_file() and file.suffix != ".pyc"]
    assert sum(sizes) < MOST_ZOO_BYTES


def test_every_shipped_model_matches_its_manifest():
    for name in load.names():
        manifest = load.manifest(name)
        content = (ROOT / "zoo" / manifest.file).read_bytes()
        assert (len(content), hashlib.sha256(content).hexdigest()) == (manifest.bytes, manifest.sha256), name


def test_every_binary_in_the_zoo_has_a_manifest():
    binaries = {file.name for suffix in ("onnx", "npz") for file in (ROOT / "zoo").glob(f"*.{suffix}")}
    assert binaries == {load.manifest(name).file for name in load.names()}

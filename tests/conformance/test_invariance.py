"""Passes of many against passes of one: on a sound export, and on graphs whose result depends on the pass."""

import hashlib
import json
import shutil
from collections.abc import Callable
from pathlib import Path

import onnx
import pytest
from onnx import TensorProto, helper
from typer.testing import CliRunner

from tests.conformance.conftest import Models
from underpaint.artifacts.index_writer import write_index
from underpaint.artifacts.results import read_results
from underpaint.cli.app import app
from underpaint.runtime.evaluation import invariance
from underpaint.runtime.evaluation.invariance import COUNTS, ROWS, check_invariance
from underpaint.runtime.evaluation.pass_comparison import summary


def of_count(size: float) -> list[onnx.NodeProto]:
    """logits = true * (1 + size * (T - 1)): scaled by how many positions stand in the pass."""
    return [
        helper.make_node("Shape", ["tokens"], ["all_sizes"]),
        helper.make_node("Gather", ["all_sizes", "planted_one"], ["count"], axis=0),
        helper.make_node("Sub", ["count", "planted_one"], ["more"]),
        helper.make_node("Cast", ["more"], ["more_float"], to=TensorProto.FLOAT),
        helper.make_node("Mul", ["more_float", "planted_size"], ["scaled"]),
        helper.make_node("Mul", ["true_logits", "scaled"], ["wrong"]),
        helper.make_node("Add", ["true_logits", "wrong"], ["logits"]),
    ]


def of_rows(size: float) -> list[onnx.NodeProto]:
    """Every row leans towards the mean of its batch."""
    return [
        helper.make_node("ReduceMean", ["true_logits", "planted_zero"], ["mean"], keepdims=1),
        helper.make_node("Sub", ["mean", "true_logits"], ["off"]),
        helper.make_node("Mul", ["off", "planted_size"], ["lean"]),
        helper.make_node("Add", ["true_logits", "lean"], ["logits"]),
    ]


def of_place(size: float) -> list[onnx.NodeProto]:
    """Every position leans towards the first of its pass."""
    return [
        helper.make_node("Gather", ["true_logits", "planted_zero"], ["first"], axis=1),
        helper.make_node("Sub", ["first", "true_logits"], ["off"]),
        helper.make_node("Mul", ["off", "planted_size"], ["lean"]),
        helper.make_node("Add", ["true_logits", "lean"], ["logits"]),
    ]


def plant(folder: Path, name: str, nodes: list[onnx.NodeProto], size: float) -> None:
    """Put nodes between a decoder's logits and its output, and make its manifest and the index agree."""
    path = folder / f"{name}.onnx"
    model = onnx.load(path, load_external_data=False)
    for node in model.graph.node:
        node.output[:] = ["true_logits" if each == "logits" else each for each in node.output]
        node.input[:] = ["true_logits" if each == "logits" else each for each in node.input]
    model.graph.node.extend(nodes)
    for key, value in (("planted_zero", [0]), ("planted_one", [1])):
        model.graph.initializer.append(helper.make_tensor(key, TensorProto.INT64, [1], value))
    model.graph.initializer.append(helper.make_tensor("planted_size", TensorProto.FLOAT, [], [size]))
    path.write_bytes(model.SerializeToString())
    content = path.read_bytes()
    for file in (folder / f"{name}.json", folder / "model_index.json"):
        plain = json.loads(file.read_text())
        one = plain["models"][name] if "models" in plain else plain
        one["sha256"] = hashlib.sha256(content).hexdigest()
        if "bytes" in one:
            one["bytes"] = len(content)
        file.write_text(json.dumps(plain))


def without(models: Models, left_out: str, folder: Path) -> Path:
    """The tiny models but one of their two drafters."""
    shutil.copytree(models.folder, folder)
    for file in folder.glob(f"{left_out}.*"):
        file.unlink()
    write_index(folder)
    return folder


@pytest.fixture(scope="module")
def sound(models: Models, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return without(models, "drafter_int8", tmp_path_factory.mktemp("sound") / "models")


def test_matrices_in_8_bits_are_known_and_allowed_their_own_steps(models: Models, tmp_path: Path) -> None:
    comparisons = list(check_invariance(without(models, "drafter", tmp_path / "models"), ("drafter_int8",)))
    assert {(one.model, one.precision) for one in comparisons} == {("drafter_int8", "int8")}
    assert all(one.passed for one in comparisons)


def test_a_sound_export_passes_at_every_count_and_row(sound: Path) -> None:
    comparisons = list(check_invariance(sound))
    assert {one.model for one in comparisons} == {"target", "drafter"}
    counts = [count for count in COUNTS if count <= 16]
    for model in ("target", "drafter"):
        for rows in ROWS:
            of_one = [one for one in comparisons if (one.model, one.rows) == (model, rows)]
            for row in range(rows):
                of_row = [one for one in of_one if one.row == row]
                assert [one.count for one in of_row if one.form == "chain"] == counts
                assert [one.count for one in of_row if one.form == "beside"] == counts[1:]
    assert all(one.passed for one in comparisons)
    assert all(one.tokens >= 3 for one in comparisons)
    again = [one for one in comparisons if one.form == "chain" and one.rows == one.count == 1]
    assert [one.logits for one in again] == [0.0, 0.0]


@pytest.mark.parametrize(
    ("nodes", "seen_by"),
    [
        (of_count, lambda one: one.count > 1),
        (of_rows, lambda one: one.rows > 1),
        (of_place, lambda one: one.count > 1),
    ],
    ids=["count", "rows", "place"],
)
@pytest.mark.parametrize("name", ["target", "drafter"])
def test_a_graph_that_depends_on_its_pass_is_seen(
    sound: Path,
    tmp_path: Path,
    nodes: Callable[[float], list[onnx.NodeProto]],
    seen_by: Callable[[invariance.PassComparison], bool],
    name: str,
) -> None:
    folder = tmp_path / "models"
    shutil.copytree(sound, folder)
    plant(folder, name, nodes(0.02), 0.02)
    comparisons = list(check_invariance(folder, (name,)))
    assert all(one.passed for one in comparisons if not seen_by(one))
    failed = [one for one in comparisons if not one.passed]
    assert {one.form for one in failed} == {"chain", "beside"}
    worst = max(failed, key=lambda one: one.relative)
    assert worst.logits > 1e-3
    assert worst.probs > 1e-4


def test_a_flip_is_told_with_its_lead(sound: Path, tmp_path: Path) -> None:
    folder = tmp_path / "models"
    shutil.copytree(sound, folder)
    plant(folder, "target", of_place(1.0), 1.0)  # all positions say what the first one says
    comparisons = list(check_invariance(folder, ("target",)))
    flipped = [one for one in comparisons if one.flips]
    assert flipped
    for one in flipped:
        assert one.first_flip is not None
        assert 0 <= one.first_flip.cell < 16
        assert one.first_flip.margin >= one.least_margin


def test_the_command_writes_what_the_schema_says(sound: Path, tmp_path: Path) -> None:
    figures = tmp_path / "figures.json"
    done = CliRunner().invoke(app, ["check", str(sound), "--invariance", "--model", "target", "--json", str(figures)])
    assert done.exit_code == 0, done.output
    assert "0 flips of the likeliest" in done.output
    results = read_results(figures)
    assert results["kind"] == "invariance"
    assert list(results["model"]["sha256"]) == ["target"]
    table_rows = [line for line in done.output.splitlines() if line.strip().startswith("target ") and " fp32 " in line]
    assert len(table_rows) == len(summary(results["passes"])) == 2 * len([count for count in COUNTS if count <= 16]) - 1
    assert CliRunner().invoke(app, ["results", "validate", str(figures)]).exit_code == 0


def test_the_command_fails_on_a_planted_defect(sound: Path, tmp_path: Path) -> None:
    folder = tmp_path / "models"
    shutil.copytree(sound, folder)
    plant(folder, "target", of_count(0.02), 0.02)
    done = CliRunner().invoke(app, ["check", str(folder), "--invariance", "--model", "target"])
    assert done.exit_code == 1
    assert " no" in done.output


def refused(arguments: list[str]) -> str:
    done = CliRunner().invoke(app, ["check", *arguments])
    assert done.exit_code == 2, done.output
    return " ".join(done.output.split())


def test_bad_input_is_named(sound: Path, tmp_path: Path) -> None:
    assert "it holds target, drafter" in refused([str(sound), "--invariance", "--model", "judge"])
    assert str(tmp_path) in refused([str(tmp_path), "--invariance"])
    assert "expected one of cpu" in refused([str(sound), "--invariance", "--backend", "gpu"])
    assert "need --invariance; add it" in refused([str(sound), "--json", str(tmp_path / "a.json")])
    assert "it is a folder" in refused([str(sound), "--invariance", "--json", str(tmp_path)])

"""Lumina-mGPT's sequence: marks before the codes, a line token behind each row of them."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

from tests.published.text_models import CODES, LINE, LUMINA, MARKS, PROMPT, chameleon, lumina_outputs, save_qwen
from underpaint.algos.rows import SamplingParams
from underpaint.algos.tree import DraftTree, Verdict, root_only
from underpaint.cli.app import app as underpaint
from underpaint.export.checkpoint import Request, export_checkpoint
from underpaint.export.verify import verify
from underpaint.models.published.files import CheckpointError
from underpaint.models.published.load import load
from underpaint.models.published.options import LoadOptions
from underpaint.runtime.engines.context import EngineContext, EngineError
from underpaint.runtime.engines.engine import manifest_config
from underpaint.runtime.engines.target import EngineTarget
from underpaint.zoo.load import manifest

pytest.importorskip("transformers", reason="the extra 'chameleon' is not installed")


@pytest.mark.parametrize("precision", ["fp32", "fp16"])
def test_lumina_is_checked_with_its_marks_and_lines(tmp_path: Path, precision: str) -> None:
    chameleon(False, 4).save_pretrained(tmp_path / "lumina")
    export_checkpoint(Request("chameleon", tmp_path / "lumina", precision, LUMINA, neighbours=5), tmp_path / "out")
    (verdict,) = verify(tmp_path / "out", True, 1)
    assert verdict.passed
    assert verdict.report.cases["unseen"]["logits"].largest > 0
    assert "passed" in verdict.lines()[0]
    config = manifest_config(manifest("target", tmp_path / "out").settings, "target")
    assert (config.image_start_ids, config.uncond_keep) == (tuple(MARKS), (0, 3))
    assert (config.eol_id, config.capacity) == (CODES + LINE, 11 + 16 + 3)


def test_lumina_agrees_with_transformers_across_rows(tmp_path: Path) -> None:
    """Logits behind a prompt, two codes and every node of a tree that runs over the end of the first row."""
    model = chameleon(False, 4)
    model.save_pretrained(tmp_path / "lumina")
    export_checkpoint(Request("chameleon", tmp_path / "lumina", options=LUMINA, neighbours=5), tmp_path / "out")
    target = EngineTarget.open("target", SamplingParams(), tmp_path / "out", EngineContext(threads=1))
    target.prepare(target.encoder.of_ids(PROMPT[0].numpy()))
    target.begin()
    drawn_tokens = [3, 9]
    for token in drawn_tokens:
        tree = root_only(token, CODES)
        target.score(tree)
        target.commit(tree, Verdict((), 0))
    parents = np.array([-1, 0, 0, 1, 2, 3])
    tree = DraftTree(np.array([5, 1, 7, 2, 4, 6]), parents, "iid", np.empty((0, CODES)), np.full(6, -1))
    target.score(tree)
    assert target._pass is not None
    assert target._layout is not None
    assert target._pass.logits.shape[1] == 6 + 2
    for node, logits in enumerate(target._pass.logits[0, target._layout.outputs]):
        codes = torch.tensor([*drawn_tokens, *tree.tokens[[0, *tree.path_to(node)]]])
        expected = lumina_outputs(model, PROMPT[0], codes)[0][-1]
        np.testing.assert_allclose(logits, expected.numpy(), atol=1e-4)


def test_a_wide_picture_names_its_height_and_its_width(tmp_path: Path) -> None:
    """4 rows of 6 codes, 64 by 96 pixels, over a whole picture and as a command exports it."""
    model = chameleon(False, 4)
    model.save_pretrained(tmp_path / "lumina")
    config = tmp_path / "lumina" / "config.json"
    values = json.loads(config.read_text())
    free = min(set(range(64)) - set(values["vocabulary_map"].values()))
    values["vocabulary_map"]["<reserved08803>"] = free
    config.write_text(json.dumps(values))
    export = ["export", str(tmp_path / "lumina"), "--kind", "chameleon", "--layout", "lumina", "--prefix", "11"]
    export += ["--neighbours", "5", "--out", str(tmp_path / "out")]
    result = CliRunner().invoke(underpaint, [*export, "--grid", "4x6"])
    assert result.exit_code == 0, result.output
    (verdict,) = verify(tmp_path / "out", True, 1)
    assert verdict.passed
    marks = (*MARKS[:2], free)
    config = manifest_config(manifest("target", tmp_path / "out").settings, "target")
    assert (config.height, config.width, config.image_start_ids) == (4, 6, marks)
    target = EngineTarget.open("target", SamplingParams(), tmp_path / "out", EngineContext(threads=1))
    target.prepare(target.encoder.of_ids(PROMPT[0].numpy()))
    codes = np.arange(24) * 5 % CODES
    distributions = [target.begin().probs[0]]
    for token in codes[:-1]:
        tree = root_only(int(token), CODES)
        distributions.append(target.score(tree).probs[0])
        target.commit(tree, Verdict((), 0))
    expected = lumina_outputs(model, PROMPT[0], torch.from_numpy(codes[:-1]), marks, 6, 24)[0]
    np.testing.assert_allclose(distributions, expected.softmax(-1).detach().numpy(), atol=1e-5)
    for grid, message in (
        ("4x5", "expected an even --grid, pixels / 16"),
        ("4x8", "<reserved08804> not in vocabulary_map"),
        (
            "4x",
            "--grid: expected cells along a side, 4 or more, or rows x columns as 48x64, in digits 0 to 9, got '4x'",
        ),
        ("2", "--grid: expected cells along a side"),
    ):
        result = CliRunner().invoke(underpaint, [*export, "--grid", grid])
        assert result.exit_code == 2
        assert message in result.output.replace("\n", " ")
    result = CliRunner().invoke(underpaint, [*export, "--grid", "4x6", "--layout", "anole"])
    assert result.exit_code == 2
    assert "only --layout lumina tells a model how wide a picture is" in result.output


def test_lumina_takes_a_prompt_and_puts_the_marks_behind(tmp_path: Path) -> None:
    chameleon(False, 4).save_pretrained(tmp_path / "lumina")
    export_checkpoint(Request("chameleon", tmp_path / "lumina", options=LUMINA, neighbours=5), tmp_path / "out")
    target = EngineTarget.open("target", SamplingParams(guidance=3.0), tmp_path / "out", EngineContext(threads=1))
    for wrong, message in (
        (np.arange(9), "expected 0 to 8 ids from 0 to 63"),
        (np.array([64]), "expected 0 to 8 ids from 0 to 63"),
        (np.array([1, 40, *MARKS]), "put behind every prompt; leave them out"),
    ):
        with pytest.raises(EngineError, match=message):
            target.prepare(target.encoder.of_ids(wrong))
    # In one process one engine draws after another: what one row does not see is that of the prompt before last.
    distributions = []
    for prompt in (PROMPT[0], PROMPT[0, :2], PROMPT[0]):
        target.prepare(target.encoder.of_ids(prompt.numpy()))
        distributions.append(target.begin().probs[0])
    np.testing.assert_array_equal(distributions[0], distributions[2])
    assert np.abs(distributions[0] - distributions[1]).max() > 1e-3


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (LoadOptions(layout="lumina"), "expected an even --grid, pixels / 16"),
        (LoadOptions(grid_side=5, layout="lumina"), "expected an even --grid, pixels / 16"),
        (LoadOptions(grid_side=6, layout="lumina"), "<reserved08803> not in vocabulary_map"),
        (LoadOptions(grid_side=4, prefix=2, layout="lumina"), "expected --prefix from 3"),
        (LoadOptions(grid_side=4, uncond_keep=(0, 3), layout="lumina"), "leave --uncond-keep out"),
        (LoadOptions(grid_side=4, prefix=4, uncond_keep=(2, 3)), "expected --prefix from 5"),
    ],
)
def test_what_a_layout_lacks_is_said(tmp_path: Path, options: LoadOptions, message: str) -> None:
    chameleon(False, 4).save_pretrained(tmp_path)
    with pytest.raises(CheckpointError, match=message):
        load("chameleon", tmp_path, options=options)


def test_only_chameleons_pictures_have_a_layout(tmp_path: Path) -> None:
    save_qwen(tmp_path)
    with pytest.raises(ValueError, match="--layout lumina: only a chameleon's"):
        load("tar-lm", tmp_path, options=LUMINA)
    arguments = ["export", str(tmp_path), "--kind", "chameleon", "--out", str(tmp_path / "out"), "--layout", "rows"]
    result = CliRunner().invoke(underpaint, arguments)
    assert result.exit_code == 2
    assert "'rows' is not one of 'anole'" in result.output
    assert "'lumina'" in result.output

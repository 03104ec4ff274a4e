"""Checkpoints that load and would draw noise, and layouts that nothing reads: each is told what it is."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from tests.published.checkpoints import HEADS, SIDE, eagle_weights, noise, save_llamagen
from underpaint.artifacts.manifest import ManifestError
from underpaint.export.checkpoint import Request, export_checkpoint
from underpaint.models.published.files import CheckpointError
from underpaint.models.published.load import load
from underpaint.models.published.options import LoadOptions

TINY = LoadOptions(heads=HEADS, grid_side=SIDE)


@pytest.mark.parametrize(("name", "cells"), [("c2i_XL_384", 24), ("t2i_XL_stage2_512", 32)])
def test_a_name_that_says_another_size_is_asked_about(tmp_path: Path, name: str, cells: int) -> None:
    kind, captions = ("llamagen-t2i", True) if name.startswith("t2i") else ("llamagen-c2i", False)
    save_llamagen(tmp_path / f"{name}.pt", captions)
    with pytest.raises(CheckpointError, match=f"give --grid {cells}, or --grid 16 for 256 px"):
        load(kind, tmp_path / f"{name}.pt", options=LoadOptions(heads=HEADS))
    for grid_side in (cells, 16):
        loaded_model = load(kind, tmp_path / f"{name}.pt", options=LoadOptions(heads=HEADS, grid_side=grid_side))
        assert loaded_model.decoder is not None
        assert loaded_model.decoder.config.grid_side == grid_side


@pytest.mark.parametrize("name", ["c2i_B_256", "c2i_XL", "mine2560"])
def test_other_names_are_the_usual_size(tmp_path: Path, name: str) -> None:
    save_llamagen(tmp_path / f"{name}.pt", captions=False)
    loaded_model = load("llamagen-c2i", tmp_path / f"{name}.pt", options=LoadOptions(heads=HEADS))
    assert loaded_model.decoder is not None
    assert loaded_model.decoder.config.grid_side == 16


def test_a_target_that_the_folders_drafter_does_not_read_is_refused(tmp_path: Path) -> None:
    save_llamagen(tmp_path / "c2i.pt", captions=False)
    save_llamagen(tmp_path / "other.pt", captions=False, seed=9)
    save_file(eagle_weights(), tmp_path / "eagle.safetensors")
    pair = ("llamagen-c2i", tmp_path / "c2i.pt")
    eagle = Request("eagle-drafter", tmp_path / "eagle.safetensors", target=pair, target_options=TINY)
    export_checkpoint(eagle, tmp_path / "out")
    with pytest.raises(
        ManifestError, match=r"its drafter reads llamagen-c2i of .*c2i.pt, got llamagen-c2i of .*other.pt"
    ):
        export_checkpoint(Request("llamagen-c2i", tmp_path / "other.pt", options=TINY), tmp_path / "out")
    export_checkpoint(Request("llamagen-c2i", tmp_path / "c2i.pt", options=TINY), tmp_path / "out")


def test_a_drafter_that_reads_another_target_than_the_folders_is_refused(tmp_path: Path) -> None:
    save_llamagen(tmp_path / "c2i.pt", captions=False)
    save_llamagen(tmp_path / "t2i.pt", captions=True)
    save_llamagen(tmp_path / "other.pt", captions=False, seed=9)
    save_file(eagle_weights(), tmp_path / "eagle.safetensors")
    out = tmp_path / "out"
    export_checkpoint(Request("llamagen-c2i", tmp_path / "c2i.pt", options=TINY), out)
    before = sorted(out.iterdir())
    for pair in (("llamagen-t2i", tmp_path / "t2i.pt"), ("llamagen-c2i", tmp_path / "other.pt")):
        request = Request("eagle-drafter", tmp_path / "eagle.safetensors", target=pair, target_options=TINY)
        with pytest.raises(ManifestError, match=r"expected a drafter of its target, llamagen-c2i of .*c2i.pt, got one"):
            export_checkpoint(request, out)
    assert sorted(out.iterdir()) == before


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        (("tok_embeddings.weight", "layers.0.attention.wq.weight"), "Meta's own layout .consolidated.pth., of which"),
        (("midlayer.self_attn.q_proj.weight", "fc.weight"), "an EAGLE-3 drafter.*EAGLE-1 and EAGLE-2"),
        (("d2t", "fc.weight"), "--live MODEL --drafter FOLDER"),
    ],
)
def test_layouts_that_are_not_read_say_which_are(tmp_path: Path, names: tuple[str, ...], expected: str) -> None:
    torch.save({name: noise(4, 4) for name in names}, tmp_path / "consolidated.pth")
    kind = "chameleon" if names[0].startswith("tok") else "eagle-drafter"
    save_llamagen(tmp_path / "c2i.pt", captions=False)
    target = None if kind == "chameleon" else ("llamagen-c2i", tmp_path / "c2i.pt")
    with pytest.raises(CheckpointError, match=expected):
        load(kind, tmp_path / "consolidated.pth", options=TINY, target=target, target_options=TINY)

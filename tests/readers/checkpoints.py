"""Checkpoints as `export` and `train` read them, tiny: a good one of each kind, its reader, and what it may hold."""

import io
import json
from collections.abc import Callable
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import torch
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from tests.models.tiny import TINY, save_target, tiny_target
from tests.published.checkpoints import DIM, HEADS, VOCAB, VQ, save_llamagen, save_vq
from tests.readers.mutations import Raw, mutated_bytes, mutated_value
from tests.readers.registry import FileReader
from underpaint.models.checkpoints import load_drafter, load_target, load_vq
from underpaint.models.decoder import Decoder
from underpaint.models.published.load import load
from underpaint.models.published.options import LoadOptions
from underpaint.models.text import new_drafter
from underpaint.models.vq import VQModel


def _tokenizer(folder: Path) -> Path:
    model = VQModel(VQ)
    path = folder / "checkpoint.pt"
    torch.save({"config": {"kind": "tokenizer", "vq": asdict(VQ)}, "model": model.state_dict()}, path)
    return path


def _published(write: Callable[[Path], object], name: str, folder: Path) -> Path:
    write(folder / name)
    return folder / name


def _as_safetensors(folder: Path) -> Path:
    model = save_llamagen(folder / "whole.pt", captions=False)
    (folder / "whole.pt").unlink()
    save_file({name: value.contiguous() for name, value in model.state_dict().items()}, folder / "model.safetensors")
    return folder / "model.safetensors"


def _drafter(folder: Path) -> Path:
    drafter = new_drafter(tiny_target().decoder)
    described = {"kind": "drafter", "grids": [TINY.grid_side], "decoder": asdict(drafter.config)}
    torch.save({"config": described, "model": drafter.state_dict()}, folder / "checkpoint.pt")
    return folder / "checkpoint.pt"


def _target(folder: Path) -> Path:
    return save_target(folder / "checkpoint.pt", tiny_target())


def _check_module(module: nn.Module) -> None:
    for name, value in module.state_dict().items():
        assert value.numel(), name
        assert not value.is_complex(), name
        assert not value.is_floating_point() or bool(value.isfinite().all()), f"{name} is not finite"


def _check_decoder(decoder: Decoder) -> None:
    _check_module(decoder)
    assert decoder.config.dim == DIM
    assert 2 <= decoder.config.vocab_size <= VOCAB


def _decoder(kind: str, path: Path) -> Decoder:
    decoder = load(kind, path, options=LoadOptions(heads=HEADS)).decoder
    assert decoder is not None
    return decoder


CHECKPOINTS = [
    FileReader("tokenizer of a recipe", "torch", _tokenizer, load_vq, _check_module),
    FileReader("target of a recipe", "torch", _target, load_target, _check_module),
    FileReader(
        "drafter of a recipe",
        "torch",
        _drafter,
        lambda path: load_drafter(path, tiny_target().decoder),
        _check_module,
    ),
    FileReader("LlamaGen's tokenizer", "torch", partial(_published, save_vq, "vq.pt"), load_vq, _check_module),
    FileReader(
        "LlamaGen, classes",
        "torch",
        partial(_published, partial(save_llamagen, captions=False), "c2i.pt"),
        partial(_decoder, "llamagen-c2i"),
        _check_decoder,
    ),
    FileReader(
        "LlamaGen, captions",
        "torch",
        partial(_published, partial(save_llamagen, captions=True), "t2i.pt"),
        partial(_decoder, "llamagen-t2i"),
        _check_decoder,
    ),
    FileReader(
        "LlamaGen as safetensors", "safetensors", _as_safetensors, partial(_decoder, "llamagen-c2i"), _check_decoder
    ),
]
"""Of decoders, drafters and tokenizers, in the forms of the recipes and of their authors."""


class Content(bytes):
    """Of a file, told by its size where a test fails."""

    def __repr__(self) -> str:
        return f"{len(self)} bytes"


def _changed_tensors() -> list[Callable[[Tensor], Any]]:
    return [
        lambda value: value.double(),
        lambda value: value.half(),
        lambda value: value.long(),
        lambda value: value.to(torch.complex64),
        lambda value: value.bool(),
        lambda value: value[:0],
        lambda value: value[:-1],
        lambda value: value[None],
        lambda value: value.flatten(),
        lambda value: value.flip(0),
        lambda value: torch.zeros_like(value),
        lambda value: value + float("nan"),
        lambda value: value + float("inf"),
        lambda value: value.double() * 1e300,
        lambda value: torch.tensor(1.0),
        lambda value: value.to("meta"),
        lambda value: value.to_sparse() if value.is_floating_point() else value,
    ]


def _plain(value: Any) -> Any:
    """A mutated value as Python holds it: raw texts of JSON as text."""
    if isinstance(value, Raw):
        try:
            return json.loads(value.text)
        except (ValueError, RecursionError):
            return value.text
    if isinstance(value, dict):
        return {name: _plain(item) for name, item in value.items()}
    return [_plain(item) for item in value] if isinstance(value, list | tuple) else value


@st.composite
def mutated_checkpoint(draw: st.DrawFn, path: Path, safetensors: bool) -> bytes:
    """The file with one tensor changed, missing or under another name, one value of its config changed, or bytes."""
    content = path.read_bytes()
    how = draw(st.sampled_from(["tensor", "tensor", "tensor", "config", "missing", "renamed", "more", "bytes"]))
    if how == "bytes":
        return Content(draw(mutated_bytes(content)))
    saved: Any = load_file(path) if safetensors else torch.load(path, weights_only=True)
    weights = dict(saved if safetensors else saved["model"])
    name = draw(st.sampled_from(sorted(weights)))
    if how == "config" and not safetensors and "config" in saved:
        saved["config"] = _plain(draw(mutated_value(saved["config"])))
    elif how in ("missing", "renamed"):
        value = weights.pop(name)
        weights |= {draw(st.sampled_from(["", "x", f"{name}.0", name.upper()])): value} if how == "renamed" else {}
    elif how == "more":
        weights["unheard.of"] = torch.ones(2)
    else:
        weights[name] = draw(st.sampled_from(_changed_tensors()))(weights[name])
    if safetensors:
        if any(value.is_sparse or value.is_meta for value in weights.values()):
            return Content(content[:-1])
        target = path.parent / "mutated.safetensors"
        save_file({key: value.contiguous() for key, value in weights.items()}, target)
        return Content(target.read_bytes())
    stream = io.BytesIO()
    torch.save({**saved, "model": weights}, stream)
    return Content(stream.getvalue())

"""Passes of a few sizes, compiled or captured as CUDA graphs, give the tokens of passes that run as they are."""

from __future__ import annotations

import shutil
from contextlib import contextmanager

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from tests.runtime.live.tiny_models import MODELS, family_for, grid_of
from underpaint.runtime.live import padded
from underpaint.runtime.live.generate import accelerate
from underpaint.runtime.live.model import LiveModelError

needs_compiler = pytest.mark.skipif(shutil.which("g++") is None, reason="torch.compile needs g++ on a CPU")


def drawn(fast, tiny, **options):
    image = fast.generate(tiny.prompt, negative_prompt=tiny.negative or None, **options)
    return image.drawing.tokens, image.drawing.target_nfe


@needs_compiler
@pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning")
def test_compiled_passes_draw_the_same_tokens():
    tiny, about = MODELS["emu3"](), {"grid": grid_of("emu3")}
    plain, compiled = accelerate(tiny.model, "ar", **about), accelerate(tiny.model, "ar", **about, compile=True)
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    assert drawn(compiled, tiny, temperature=0) == drawn(plain, tiny, temperature=0)
    sizes = len(compiled.pipeline.high.engine._passes._sized)  # of one cell, and of a cell and a line's end
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == sizes == 2
    assert not torch._dynamo.utils.counters["graph_break"]
    drawn(compiled, tiny, temperature=0)
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == sizes
    assert compiled.pipeline.fingerprint()["compiled"]


@pytest.mark.parametrize(
    ("family", "method"), [*((family, "sjd") for family in sorted(MODELS)), ("emu3", "eagle1"), ("janus", "eagle1")]
)
def test_padded_passes_draw_the_same_tokens_in_every_family(family, method, monkeypatch, tmp_path):
    from underpaint.algos.rows import SamplingParams
    from underpaint.runtime.live.drafter import LiveDrafter, new_drafter

    monkeypatch.setattr(torch, "compile", lambda body, **_: body)
    tiny, about = MODELS[family](), {"family": family_for(family), "grid": grid_of(family)}

    def accelerated(**more):
        torch.manual_seed(1)
        live = accelerate(tiny.model, **about).live
        return accelerate(tiny.model, method, **about, drafter=LiveDrafter(new_drafter(live), SamplingParams()), **more)

    assert drawn(accelerated(compile=True), tiny, seed=3) == drawn(accelerated(), tiny, seed=3)


class Recorder(TorchDispatchMode):
    """Stands for a CUDA graph: records what is computed, and computes it again into the same tensors."""

    def __init__(self):
        super().__init__()
        self.calls, self.replays = [], 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        outputs = function(*args, **(kwargs or {}))
        self.calls.append((function, args, kwargs or {}, outputs))
        return outputs

    def replay(self):
        self.replays += 1
        for function, args, kwargs, outputs in self.calls:
            again = function(*args, **kwargs)
            for old, new in zip(
                *(each if isinstance(each, tuple) else (each,) for each in (outputs, again)), strict=True
            ):
                if isinstance(old, torch.Tensor) and old.data_ptr() != new.data_ptr():
                    old.copy_(new)


@pytest.fixture
def graphs(monkeypatch):
    """Lets passes be captured on a CPU; the graphs that were."""
    captured = []

    class Stream:
        def __init__(self, device):
            pass

        def wait_stream(self, other):
            pass

    class Graph(Recorder):
        def __init__(self):
            super().__init__()
            captured.append(self)

    @contextmanager
    def nothing(_):
        yield

    monkeypatch.setattr(torch, "compile", lambda body, **_: body)
    monkeypatch.setattr(torch.cuda, "Stream", Stream)
    monkeypatch.setattr(torch.cuda, "current_stream", Stream)
    monkeypatch.setattr(torch.cuda, "stream", nothing)
    monkeypatch.setattr(torch.cuda, "graph_pool_handle", lambda: (0, 1))
    monkeypatch.setattr(torch.cuda, "CUDAGraph", Graph)
    monkeypatch.setattr(torch.cuda, "graph", lambda recorder, *_, **__: recorder)
    monkeypatch.setattr(padded, "captures", lambda tensor: True)
    return captured


@pytest.mark.parametrize("family", ["emu3", "glm-image"])
def test_captured_passes_draw_the_same_tokens_from_the_same_buffers(family, graphs):
    tiny, about = MODELS[family](), {"family": family_for(family), "grid": grid_of(family)}
    plain = accelerate(tiny.model, "jacobi-lookup", **about)
    fast = accelerate(tiny.model, "jacobi-lookup", **about, compile=True)
    expected = drawn(plain, tiny, temperature=0)
    assert drawn(fast, tiny, temperature=0) == expected
    passes = fast.pipeline.high.engine._passes
    tensors = [*passes._tensors.keys, *passes._tensors.values]
    tensors += [one for sized in passes._sized.values() for one in (sized.embeds, sized.mask, sized.places)]
    places = [each.data_ptr() for each in tensors]
    count = len(graphs)
    assert count == len(passes._sized)
    assert drawn(fast, tiny, temperature=0) == expected
    assert len(graphs) == count
    assert sum(each.replays for each in graphs) == 2 * (expected[1] - 1)
    tensors = [*passes._tensors.keys, *passes._tensors.values]
    tensors += [one for sized in passes._sized.values() for one in (sized.embeds, sized.mask, sized.places)]
    assert [each.data_ptr() for each in tensors] == places


def test_a_pass_beyond_the_cache_is_captured_at_its_new_size(graphs):
    tiny = MODELS["emu3"]()
    fast = accelerate(tiny.model, "ar", grid=grid_of("emu3"), compile=True)
    expected = drawn(fast, tiny, temperature=0)
    passes = fast.pipeline.high.engine._passes
    before = len(graphs)
    passes._tensors.reserve(passes._tensors.slots + 1)
    assert drawn(fast, tiny, temperature=0) == expected
    assert len(graphs) == 2 * before


def test_what_cannot_be_compiled_is_refused(monkeypatch):
    tiny = MODELS["emu3"]()
    monkeypatch.setattr(shutil, "which", lambda name: None)
    with pytest.raises(LiveModelError, match=r"compile: expected a C\+\+ compiler"):
        accelerate(tiny.model, grid=grid_of("emu3"), compile=True)

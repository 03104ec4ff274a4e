"""Live models on the device runtime draw what the host's loop draws, in Triton's interpreter."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from functools import partial

import pytest
import torch
from typer.testing import CliRunner

from tests.published.checkpoints import HEADS, noise, save_dtok
from tests.runtime.live.tiny_models import MODELS, family_for, grid_of
from underpaint.algos.protocols import Grid
from underpaint.algos.rows import SamplingParams
from underpaint.cli.app import app
from underpaint.models.published.options import LoadOptions
from underpaint.runtime.device.forms import DeviceError
from underpaint.runtime.device.kernels import probs as sampling_kernels
from underpaint.runtime.device.runner import DeviceRunner
from underpaint.runtime.drawing import ImageTask, draw
from underpaint.runtime.engines.torch_sampling import sampled_probs
from underpaint.runtime.live import glm_image as glm
from underpaint.runtime.live.device import plan_live
from underpaint.runtime.live.generate import accelerate
from underpaint.runtime.live.model import LiveModelError
from underpaint.runtime.live.pipeline import LivePipeline
from underpaint.runtime.live.published import load_published
from underpaint.runtime.methods.registry import build_method, resolve

SMALL = Grid(2, 3)


def opened(name, grid=SMALL):
    """A tiny model on a small grid, and two prompts of unequal length."""
    tiny = MODELS[name]()
    family, size = family_for(name), grid_of(name)
    if name == "glm-image":
        family, size, grid = partial(glm.glm_image, preview=Grid(1, 2)), (2, 2), Grid(1, 6)
    fast = accelerate(tiny.model, "ar", family=family, grid=size)
    pipeline = LivePipeline(replace(fast.live, grid=grid))
    return pipeline, [fast.condition(ids) for ids in (tiny.prompt, (tiny.prompt[0], *tiny.prompt[2:]))]


def method_of(pipeline, name, temperature, settings=()):
    return build_method(name, resolve(name, temperature, None, settings, "paper"), pipeline.tables)


def both(pipeline, conditions, method, sampling, batch=None):
    """Drawings by the device, in one batch if none is given, and by the host."""
    plan = plan_live(pipeline, [method], sampling, conditions, batch=batch or len(conditions))
    assert not plan.gaps
    drawings = dict(plan.open().program(method, sampling).draw_all([ImageTask(each, 3) for each in conditions]))
    hosts = [draw(pipeline, method, sampling, each, 3) for each in conditions]
    return [drawings[number] for number in range(len(conditions))], hosts


@pytest.mark.parametrize("name", ["chameleon", "emu3", "glm-image", "janus"])
def test_a_family_is_drawn_on_the_device_as_by_the_host(name):
    pipeline, conditions = opened(name)
    method = method_of(pipeline, "jacobi-lookup", 1.0)
    on_device, on_host = both(pipeline, conditions, method, replace(pipeline.sampling, top_k=9, temperature=1.0))
    for drawing, host in zip(on_device, on_host, strict=True):
        assert drawing.tokens == host.tokens
        assert drawing.target_nfe == host.target_nfe
        assert (drawing.loop, host.loop) == ("kernels", "host")


def test_a_picture_that_takes_a_free_slot_counts_positions_from_its_own_prompt():
    pipeline, conditions = opened("chameleon")
    method = method_of(pipeline, "jacobi-lookup", 1.0)
    sampling = replace(pipeline.sampling, top_k=9, temperature=1.0)
    on_device, on_host = both(pipeline, [*conditions, *conditions], method, sampling, batch=2)
    assert len({one.target_nfe for one in on_host}) > 1, "pictures end at different times"
    assert [one.tokens for one in on_device] == [one.tokens for one in on_host]


@pytest.mark.parametrize(
    ("method", "temperature", "settings"),
    [
        ("ar", 0.0, ()),
        ("sjd", 0.7, ()),
        ("scd-maximal", 1.0, ()),
        ("zipar", 1.0, ("window=2",)),
        ("jacobi-lookup", 0.0, ()),
    ],
)
def test_a_method_is_drawn_on_the_device_as_by_the_host(method, temperature, settings):
    pipeline, conditions = opened("chameleon")
    built = method_of(pipeline, method, temperature, settings)
    sampling = SamplingParams(guidance=3.0, temperature=temperature, top_p=0.9)
    (drawing,), (host,) = both(pipeline, conditions[:1], built, sampling)
    assert drawing.tokens == host.tokens
    assert drawing.target_nfe == host.target_nfe


def test_features_are_conditions_on_the_device_too(tmp_path):
    import numpy as np

    save_dtok(tmp_path / "dtok.pt")
    np.save(tmp_path / "features.npy", noise(2, 10).numpy())
    loaded = load_published("tar-dtok", tmp_path / "dtok.pt", options=LoadOptions(heads=HEADS, prefix=6))
    drawings = [
        accelerate(loaded, "ar", kernels=kernels).generate(str(tmp_path / "features.npy"), seed=4).drawing
        for kernels in (True, False)
    ]
    assert drawings[0].tokens == drawings[1].tokens
    assert [one.loop for one in drawings] == ["kernels", "host"]


def test_accelerate_draws_one_and_several_by_kernels_where_they_are_asked_for(monkeypatch):
    tiny = MODELS["chameleon"]()
    fast, host = (accelerate(tiny.model, "ar", grid=(2, 2), kernels=kernels) for kernels in (True, None))
    prompts = [tiny.prompt, (0, 110, 121)]
    several = fast.generate(prompts, seed=[5, 6], batch=2)
    assert [one.drawing.loop for one in several] == ["kernels", "kernels"]
    expected = host.generate(prompts, seed=[5, 6], batch=2)
    assert [one.drawing.tokens for one in several] == [one.drawing.tokens for one in expected]
    with monkeypatch.context() as full:  # the program's own buffers take all memory, and are used again
        full.setattr(os, "sysconf", lambda name: 1)
        again = fast.generate(prompts, seed=[5, 6], batch=2)
        with pytest.raises(DeviceError, match="this batch needs"):
            fast.generate(prompts[0], seed=5)
    assert [one.drawing.tokens for one in again] == [one.drawing.tokens for one in expected]
    assert fast.generate(prompts[0], seed=5).drawing.tokens == expected[0].drawing.tokens


def test_what_the_device_has_no_form_for_is_left_to_the_host():
    pipeline, conditions = opened("chameleon")
    eagle = method_of(pipeline, "eagle2", 1.0)
    plan = plan_live(pipeline, [eagle, method_of(pipeline, "ar", 1.0)], pipeline.sampling, conditions)
    assert plan.gaps.keys() == {"eagle2"}
    assert "drafts with another model" in plan.gaps["eagle2"]
    lines, conditions = opened("emu3")
    plan = plan_live(lines, [method_of(lines, "zipar", 1.0)], lines.sampling, conditions)
    assert "lines of the picture end in a token" in plan.gaps["zipar"]
    tiny = MODELS["chameleon"]()
    with pytest.raises(LiveModelError, match="compiled by themselves"):
        accelerate(tiny.model, "ar", compile=True, kernels=True).generate(tiny.prompt)


def test_commands_draw_a_live_model_on_the_device_and_say_what_ran(tmp_path):
    tiny = MODELS["janus"]()
    tiny.model.save_pretrained(tmp_path / "model")
    prompt = ",".join(map(str, tiny.prompt))
    options = [prompt, "--live", str(tmp_path / "model"), "--backend", "device", "--device", "cpu"]
    run = [*options, "--out", str(tmp_path / "run"), "--methods", "ar", "--json", str(tmp_path / "figures.json")]
    compared = CliRunner().invoke(app, ["compare", *run])
    assert compared.exit_code == 0, compared.output
    assert [row["loop"] for row in json.loads((tmp_path / "figures.json").read_text())["rows"]] == ["kernels"]
    refused = CliRunner().invoke(app, ["compare", *options, "--forward", "onnx", "--out", str(tmp_path / "no")])
    assert refused.exit_code == 2
    assert "--forward: expected torch" in " ".join(refused.output.split())


def test_a_model_that_cannot_be_captured_has_its_kernels_launched_one_by_one(monkeypatch):
    """A stand-in for CUDA graphs: the program says which of the two ran."""
    pipeline, conditions = opened("chameleon", Grid(1, 2))
    method, tasks = method_of(pipeline, "ar", 1.0), [ImageTask(conditions[0], 3)]
    plan = plan_live(pipeline, [method], pipeline.sampling, conditions[:1])

    class Graph:
        def __init__(self, run):
            self.replay = run

    def refuse(runner):
        raise RuntimeError("operation not permitted when stream is capturing")

    loops, tokens = [], []
    captures = {
        "captured": lambda runner: runner._graphs.extend(Graph(run) for run, _ in runner.cycle.stages),
        "kernels": refuse,
    }
    for capture in captures.values():
        monkeypatch.setattr(DeviceRunner, "capture", capture)
        program = plan.open().program(method, pipeline.sampling)
        program.prime(tasks)
        ((_, drawing),) = program.draw_all(tasks)
        loops.append(drawing.loop)
        tokens.append(drawing.tokens)
    assert loops == list(captures)
    assert tokens[0] == tokens[1] == draw(pipeline, method, pipeline.sampling, conditions[0], 3).tokens


@pytest.mark.parametrize(
    "sampling",
    [
        SamplingParams(temperature=0.0, guidance=2.0),
        SamplingParams(temperature=0.7, guidance=2.0, top_k=5),
        SamplingParams(top_p=0.6),
    ],
)
def test_the_kernel_samples_as_torch_does(sampling):
    rows = 1 if sampling.guidance == 1 else 2
    logits = torch.randn(rows, 3, 20, generator=torch.Generator().manual_seed(2))
    logits[0, 2, 4] = torch.nan
    actual, expected = (sample(logits, sampling) for sample in (sampling_kernels.sampled_probs, sampled_probs))
    assert torch.allclose(actual[:2], expected[:2], atol=1e-6)
    assert actual[2].isnan().all()


def test_the_hosts_loop_samples_by_the_kernel(monkeypatch):
    pipeline, conditions = opened("emu3")
    method = method_of(pipeline, "ar", 1.0)
    expected = draw(pipeline, method, pipeline.sampling, conditions[0], 3)
    calls = []
    original = sampling_kernels.sampled_probs
    monkeypatch.setattr(sampling_kernels, "sampled_probs", lambda *args: calls.append(1) or original(*args))
    from underpaint.runtime.live import engine

    engine.sampling_kernel.cache_clear()
    monkeypatch.setattr(engine.TorchPasses, "by_kernels", True)
    assert draw(pipeline, method, pipeline.sampling, conditions[0], 3).tokens == expected.tokens
    assert len(calls) == expected.target_nfe
    engine.sampling_kernel.cache_clear()

"""A cost curve is measured only where a method chooses by one, and can be left out."""

from __future__ import annotations

import json

import pytest

from tests.cli.program import run_program
from underpaint.artifacts.decoder_config import DecoderConfig
from underpaint.runtime.costs import machine_curve


@pytest.mark.parametrize(("methods", "option"), [("eagle2,zipar", ""), ("sequoia", "--no-costs")])
def test_nothing_is_measured_that_no_method_asks_for(tmp_path, monkeypatch, methods, option):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(machine_curve, "curve_of", lambda *_, **__: pytest.fail("a curve was measured"))
    command = (
        f"compare 'a glossy fox left of a panda' --methods {methods} --resolution 64 --no-likelihood --out out {option}"
    )
    done = run_program(command, tmp_path, monkeypatch)
    assert (done.code, done.crash) == (0, ""), done
    results = json.loads((tmp_path / "out" / "compare.json").read_text())
    assert len(results["rows"]) == 1 + len(methods.split(","))


def test_a_method_that_chooses_by_costs_measures_them(tmp_path, monkeypatch):
    calls = []

    def measured(*_, **__):
        calls.append(1)
        raise ValueError("measured")

    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(machine_curve, "curve_of", measured)
    command = "compare 'a glossy fox left of a panda' --methods sequoia --resolution 64 --no-likelihood --out out"
    assert run_program(command, tmp_path, monkeypatch).code == 2
    assert calls == [1]


def test_guidance_that_the_models_lack_is_refused(tmp_path, small_models, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(DecoderConfig, "guided", False)
    done = run_program(f"costs --models {small_models} --resolution 64 --guidance 3", tmp_path, monkeypatch)
    assert (done.code, done.crash) == (2, ""), done
    assert "guidance 3: this export has no prompt without a condition" in done.err

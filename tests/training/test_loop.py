"""The training loop: resuming, stopping, and what it refuses."""

import os
import signal
from dataclasses import replace
from io import StringIO
from pathlib import Path

import pytest
import torch
from rich.console import Console
from torch import nn

from underpaint.training.history import RecipeInputs
from underpaint.training.loop import (
    CHECKPOINT,
    UNTIL_TIME,
    LoopSettings,
    Loss,
    TrainingResult,
    progress_of,
    rate_share,
    train,
)
from underpaint.training.step_log import StepLog
from underpaint.training.verbosity import verbose

SETTINGS = LoopSettings(steps=12, learning_rate=0.1, warmup_steps=2, ema_decay=0.9, validate_every=4)
CONFIG = {"kind": "line", "width": 3}


def line() -> nn.Linear:
    torch.manual_seed(0)
    return nn.Linear(3, 1)


def loss_of(model: nn.Linear, stop_at: int | None = None):
    def loss(step: int) -> Loss:
        if step == stop_at:
            os.kill(os.getpid(), signal.SIGINT)
        inputs = torch.randn(8, 3, generator=torch.Generator().manual_seed(step))
        return Loss((model(inputs) - inputs.sum(dim=1, keepdim=True)).square().mean(), {})

    return loss


def test_an_interrupted_run_continues_to_the_same_weights(tmp_path: Path) -> None:
    whole = line()
    outcome = train(whole, loss_of(whole), tmp_path / "whole", SETTINGS, CONFIG)
    assert outcome.step == 12
    assert outcome.finished

    parts = line()
    first = train(parts, loss_of(parts, stop_at=5), tmp_path / "parts", SETTINGS, CONFIG)
    assert first.step == 6
    assert not first.finished
    again = nn.Linear(3, 1)
    second = train(again, loss_of(again), tmp_path / "parts", SETTINGS, CONFIG)
    assert second.finished
    for left, right in zip(whole.parameters(), again.parameters(), strict=True):
        torch.testing.assert_close(left, right)


def test_the_checkpoint_holds_the_average_and_the_raw_weights(tmp_path: Path) -> None:
    model = line()
    train(model, loss_of(model), tmp_path, SETTINGS, CONFIG, validate=lambda: {"figure": 1.0})
    saved = torch.load(tmp_path / CHECKPOINT, weights_only=True)
    assert saved["config"] == CONFIG
    assert saved["step"] == 12
    assert saved["validation"] == {"figure": 1.0}
    assert not torch.equal(saved["model"]["weight"], saved["raw"]["weight"])
    torch.testing.assert_close(saved["model"]["weight"], model.weight.detach())


def test_without_averaging_the_weights_are_the_models(tmp_path: Path) -> None:
    model = line()
    train(model, loss_of(model), tmp_path, replace(SETTINGS, ema_decay=0.0), CONFIG)
    saved = torch.load(tmp_path / CHECKPOINT, weights_only=True)
    assert torch.equal(saved["model"]["weight"], saved["raw"]["weight"])


def test_another_models_folder_is_refused(tmp_path: Path) -> None:
    model = line()
    train(model, loss_of(model), tmp_path, SETTINGS, CONFIG)
    with pytest.raises(ValueError, match="holds another model"):
        train(model, loss_of(model), tmp_path, SETTINGS, CONFIG | {"width": 4})


def goes_on(out: Path, steps: int, inputs: RecipeInputs) -> TrainingResult:
    model = line()
    return train(model, loss_of(model), out, replace(SETTINGS, steps=steps), CONFIG, inputs=inputs)


def test_a_finished_run_refuses_inputs_that_it_would_not_use(tmp_path: Path) -> None:
    first, other = (RecipeInputs({"seed": 1, "settings": {"loss": loss}}) for loss in ("usual", "lk-alpha"))
    goes_on(tmp_path, 4, first)
    before = (tmp_path / CHECKPOINT).read_bytes()
    with pytest.raises(ValueError, match=r"is finished, and was trained with settings\.loss 'usual', now wanted 'lk-"):
        goes_on(tmp_path, 4, other)
    assert (tmp_path / CHECKPOINT).read_bytes() == before
    assert goes_on(tmp_path, 4, first) == TrainingResult(4, True, {})
    newer = RecipeInputs({"seed": 1, "settings": {"loss": "usual", "new": 0.5}, "data": "new"})
    assert goes_on(tmp_path, 4, newer).finished, "what was not recorded may be the same"
    assert goes_on(tmp_path, 6, other).step == 6
    runs = torch.load(tmp_path / CHECKPOINT, weights_only=True)["runs"]
    assert [run["first_step"] for run in runs] == [0, 4]


def test_a_run_does_not_go_on_from_another_start(tmp_path: Path) -> None:
    start: dict[str, object] = {"kind": "line", "step": 9, "elapsed_seconds": 3.0}
    others: list[dict[str, object]] = [{"step": 10}, {"validation": {"ce": 1.0}}]
    goes_on(tmp_path, 4, RecipeInputs(began_from=start))
    for steps in (4, 6):
        for other in others:
            with pytest.raises(ValueError, match="did not begin from the checkpoint now given to start from"):
                goes_on(tmp_path, steps, RecipeInputs(began_from=start | other))
    assert goes_on(tmp_path, 5, RecipeInputs(began_from=start | {"elapsed_seconds": 3.5})).step == 5
    assert goes_on(tmp_path, 6, RecipeInputs()).step == 6


def test_a_damaged_checkpoint_is_named(tmp_path: Path) -> None:
    model = line()
    train(model, loss_of(model), tmp_path, SETTINGS, CONFIG)
    whole = (tmp_path / CHECKPOINT).read_bytes()
    for damaged in (b"", b"text", whole[:-200]):
        (tmp_path / CHECKPOINT).write_bytes(damaged)
        with pytest.raises(ValueError, match=r"checkpoint\.pt is no checkpoint of these recipes, or a damaged one"):
            train(model, loss_of(model), tmp_path, SETTINGS, CONFIG)


def test_a_loss_that_is_no_number_stops_the_run(tmp_path: Path) -> None:
    model = line()
    with pytest.raises(FloatingPointError, match="step 1 is nan"):
        train(model, lambda _: Loss(model.weight.sum() * torch.nan, {}), tmp_path, SETTINGS, CONFIG)
    assert not (tmp_path / CHECKPOINT).exists()


def nan_from(model: nn.Linear, first: int):
    def loss(step: int) -> Loss:
        one = loss_of(model)(step)
        return one._replace(value=one.value * torch.nan) if step >= first else one

    return loss


def test_a_loss_that_turns_nan_leaves_the_checkpoint_before_it(tmp_path: Path) -> None:
    model, after_every_step = line(), replace(SETTINGS, checkpoint_seconds=-1.0)
    with pytest.raises(FloatingPointError, match="step 3 is nan"):
        train(model, nan_from(model, 2), tmp_path, after_every_step, CONFIG)
    saved = torch.load(tmp_path / CHECKPOINT, weights_only=True)
    assert saved["step"] == 2
    assert saved["raw"]["weight"].isfinite().all()


def test_a_loss_that_turns_nan_is_neither_validated_nor_a_finished_run(tmp_path: Path) -> None:
    model, validations = line(), list[str]()

    def validate() -> dict[str, float]:
        validations.append("one")
        return {}

    with pytest.raises(FloatingPointError, match="step 12 is nan"):
        train(model, nan_from(model, 2), tmp_path, SETTINGS, CONFIG)
    model = line()
    with pytest.raises(FloatingPointError, match="step 4 is nan"):
        train(model, nan_from(model, 2), tmp_path, SETTINGS, CONFIG, validate=validate)
    assert not validations
    assert not (tmp_path / CHECKPOINT).exists()


def test_the_schedule_follows_whichever_of_steps_and_minutes_is_further_on() -> None:
    timed = replace(SETTINGS, minutes=1.0)
    assert rate_share(SETTINGS, 0, 0.0) == pytest.approx(0.5)
    assert rate_share(timed, 4, 0.0) == rate_share(SETTINGS, 4, 0.0)
    assert rate_share(timed, 4, 45.0) == pytest.approx(rate_share(SETTINGS, 9, 0.0))
    assert rate_share(timed, 4, 60.0) == pytest.approx(SETTINGS.final_rate)


def test_a_recipe_is_told_the_share_of_each_step_before_its_loss(tmp_path: Path) -> None:
    model, shares = line(), list[float]()

    def loss(step: int) -> Loss:
        assert len(shares) == step + 1
        return loss_of(model)(step)

    train(model, loss, tmp_path, SETTINGS, CONFIG, at_share=shares.append)
    assert shares == [rate_share(SETTINGS, step, 0.0) for step in range(12)]


@pytest.mark.parametrize("change", [{"steps": 0}, {"learning_rate": 0.0}, {"ema_decay": 1.0}, {"minutes": 0.0}])
def test_settings_out_of_range_raise(change: dict[str, float]) -> None:
    with pytest.raises(ValueError, match="must be"):
        replace(SETTINGS, **change)


def test_steps_are_told_on_standard_error_or_not_at_all(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = line()
    train(model, loss_of(model), tmp_path / "told", SETTINGS, CONFIG)
    output = capsys.readouterr()
    assert (output.out, output.err.startswith("step 1 loss ")) == ("", True)
    with verbose(False):
        train(model, loss_of(model), tmp_path / "silent", SETTINGS, CONFIG)
    assert capsys.readouterr() == ("", "")


def test_the_bar_of_a_run_limited_by_time_shows_its_minutes(monkeypatch: pytest.MonkeyPatch) -> None:
    timed = replace(SETTINGS, steps=UNTIL_TIME, minutes=2.0)
    assert [progress_of(timed, 50, seconds) for seconds in (30.0, 120.0)] == [0.25, 1.0]
    assert progress_of(replace(timed, steps=100), 50, 30.0) == progress_of(SETTINGS, 6, 1e9) == 0.5
    terminal = Console(file=StringIO(), force_terminal=True)
    monkeypatch.setattr("underpaint.training.step_log.Console", lambda stderr: terminal)
    log = StepLog("training")
    assert log.progress is not None
    log.line(50, {"loss": 1.0}, progress_of(timed, 50, 30.0))
    log.close()
    (task,) = log.progress.tasks
    assert (task.percentage, task.description) == (25.0, "step 50 loss 1")

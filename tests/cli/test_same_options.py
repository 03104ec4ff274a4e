"""An option of one name means the same in every command: its type, its bounds and what it goes with."""

from pathlib import Path
from typing import Any

import pytest
import typer

from tests.cli.program import subcommands
from underpaint.algos.chance import MOST_SEED
from underpaint.algos.rows import SamplingParams
from underpaint.cli.app import app
from underpaint.cli.option_values import describe_sampling
from underpaint.cli.terminal import Format

TRAINING_SEEDS = 2**31 - 1
"""PyTorch's own seeds go no further."""


def option(command: str, name: str) -> Any:
    """The option of a command; None where it has none of that name."""
    click_command: Any = typer.main.get_command(app)
    for word in command.split():
        click_command = click_command.get_command(None, word)
    return next((one for one in click_command.params if name in one.opts), None)


def having(name: str) -> list[str]:
    return [command for command in subcommands() if option(command, name) is not None]


def asked(command: str, name: str) -> Any:
    return option(command, name).type_descriptor.annotation


@pytest.mark.parametrize("command", having("--json"))
def test_json_is_a_file_and_goes_with_formats(command: str) -> None:
    assert asked(command, "--json") is Path
    assert not option(command, "--json").is_flag
    assert option(command, "--format") is not None


@pytest.mark.parametrize("command", having("--format"))
def test_formats_are_the_same_four(command: str) -> None:
    assert asked(command, "--format") is Format
    assert option(command, "--format").default is Format.table


@pytest.mark.parametrize("command", having("--seed"))
def test_seeds_have_bounds(command: str) -> None:
    seed_option = option(command, "--seed")
    assert seed_option.min == 0
    assert seed_option.max == (TRAINING_SEEDS if command.startswith("train ") else MOST_SEED)


@pytest.mark.parametrize("name", ["--prompts-skip", "--prompts-count", "--seeds", "--threads"])
def test_counts_are_bounded_below(name: str) -> None:
    commands = having(name)
    assert len(commands) > 1
    assert {option(command, name).min for command in commands} == {0 if name == "--prompts-skip" else 1}


def test_there_are_many() -> None:
    assert len(having("--json")) >= 12
    assert len(having("--format")) >= 15
    assert "prompts" in having("--seed")


@pytest.mark.parametrize(
    ("top_k", "says"),
    [(0, "all 64 codes"), (5, "top-k 5 of 64 codes"), (2000, "top-k 2,000, which keeps all 64 codes")],
)
def test_a_top_k_larger_than_the_vocabulary_is_said(top_k: int, says: str) -> None:
    """A live model's family names one, whatever the vocabulary is."""
    assert says in describe_sampling(SamplingParams(top_k=top_k), 64)


def test_what_draws_with_exported_models_draws_with_live_ones() -> None:
    """`prompts` and `report` take a folder, and draw nothing by it."""
    assert {*having("--models")} - {*having("--live")} == {"prompts", "report"}
    assert {"compare", "evaluate", "sweep", "tune", "protocol", "trace", "premises"} <= {*having("--live")}

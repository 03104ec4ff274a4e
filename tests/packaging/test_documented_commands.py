"""Every command of the README and the documents is one that the program reads: its options and their types exist."""

import re
import shlex
from pathlib import Path
from typing import Any

import pytest
import typer

from underpaint.cli.app import app
from underpaint.cli.root import own_first

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
OUTSIDE = {"results"}  # pages made of recorded commands: those were run, by the program as it was then


def commands() -> list[tuple[str, str]]:
    """Each line of an indented block that calls the program, continued lines joined, comments left out."""
    found = []
    for page in PAGES:
        if OUTSIDE & set(page.relative_to(ROOT).parts):
            continue
        text = re.sub(r" *\\\n\s+", " ", page.read_text(encoding="utf-8"))
        for name, value in re.findall(r'^    (\w+)="(.*)"$', text, re.MULTILINE):  # a shell's variable
            text = text.replace(f"${name}", value)
        for line in re.findall(r"^    (?:\.venv/bin/)?(underpaint .*)$", text, re.MULTILINE):
            found.append((page.relative_to(ROOT).as_posix(), line))
    return found


def read(program: typer.Typer, arguments: list[str]) -> None:
    """Parse as the program does, and run nothing; click's errors where an option or a value is none."""
    command: Any = typer.main.get_command(program)
    context = command.make_context("underpaint", own_first(arguments), resilient_parsing=False)
    while hasattr(command, "commands"):
        rest = [*context._protected_args, *context.args]
        _, command, rest = command.resolve_command(context, rest)
        context = command.make_context(command.name, list(rest), parent=context)


def called(line: str) -> list[str]:
    """The arguments of the first command of a line, without what a shell reads."""
    words = shlex.split(line, comments=True)[1:]
    ends = [place for place, word in enumerate(words) if word in ("&&", "|", ";", ">", "...")]
    return words[: ends[0]] if ends else words


@pytest.mark.parametrize(("page", "line"), commands())
def test_a_documented_command_is_read(page: str, line: str) -> None:
    read(app, called(line))


def test_there_are_many_and_a_wrong_one_is_seen() -> None:
    assert len(commands()) > 60
    with pytest.raises(Exception, match="No such option"):
        read(app, ["compare", "--tempreature", "1"])
    with pytest.raises(Exception, match="valid integer"):
        read(app, ["compare", "--seeds", "one"])

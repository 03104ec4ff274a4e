"""Every command of the README and the documents is one that the program reads: its options and their types exist."""

import importlib.util
import re
import shlex
from typing import Any

import pytest
import typer

from tests.packaging.documents import PAGES, REASONS, ROOT, Command, documented_commands, page_commands
from underpaint.cli.app import app, own_first


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
    words = shlex.split(line, comments=True)
    words = words[next(place for place, word in enumerate(words) if word.endswith("underpaint")) + 1 :]
    ends = [place for place, word in enumerate(words) if word in ("&&", "|", ";", ">", "...")]
    return words[: ends[0]] if ends else words


def calls_underpaint(one: Command) -> bool:
    return one.program == "underpaint" or "python -m underpaint " in one.line


@pytest.mark.parametrize("command", [one for one in documented_commands() if calls_underpaint(one)], ids=str)
def test_a_documented_command_is_read(command: Command) -> None:
    read(app, called(command.line))


@pytest.mark.parametrize("command", [one for one in documented_commands() if one.program == "python -m"], ids=str)
def test_a_documented_module_is_there(command: Command) -> None:
    (module,) = re.findall(r"python -m (\S+)", command.line)
    assert importlib.util.find_spec(module) is not None


@pytest.mark.parametrize("command", [one for one in documented_commands() if one.program == "make"], ids=str)
def test_a_documented_target_is_made(command: Command) -> None:
    target = command.line.split()[1]
    assert re.search(rf"^{target}:", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE)


@pytest.mark.parametrize("command", [one for one in documented_commands() if one.why_not_run], ids=str)
def test_what_is_not_run_says_why(command: Command) -> None:
    why = command.why_not_run or ""
    assert why.startswith(REASONS)
    if record := re.fullmatch(r"minutes of measuring, recorded in (\S+)", why):
        assert (ROOT / record.group(1)).is_file()
        assert not command.page.startswith(("docs/how-to", "docs/tutorial"))


def test_every_tag_is_above_something() -> None:
    for page in PAGES:
        text = page.read_text(encoding="utf-8")
        reasons = {one.why_not_run for one in page_commands("", text)}
        assert set(re.findall(r"<!-- parsed, not run: (.+?) -->", text)) <= reasons, page


def test_tags_are_of_a_block_or_of_a_page() -> None:
    tag = "<!-- parsed, not run: X -->"
    of_a_block = f"    underpaint a\n\n{tag}\n\n    underpaint b\n\n    underpaint c\n\nWords.\n\n    underpaint d\n"
    assert [one.why_not_run for one in page_commands("", of_a_block)] == [None, "X", "X", None]
    of_a_page = f"# T\n\n{tag}\n\nWords.\n\n    underpaint a   # exit code 1\n"
    (one,) = page_commands("", of_a_page)
    assert (one.why_not_run, one.exit_code) == ("X", 1)


def test_there_are_many_and_a_wrong_one_is_seen() -> None:
    assert len(documented_commands()) > 120
    with pytest.raises(Exception, match="No such option"):
        read(app, ["compare", "--tempreature", "1"])
    with pytest.raises(Exception, match="valid integer"):
        read(app, ["compare", "--seeds", "one"])

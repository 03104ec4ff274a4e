"""Tables in four formats, options that stand anywhere, progress without a terminal."""

import csv
import io
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest
from typer.testing import CliRunner

from tests.cli.program import subcommands
from underpaint.cli import terminal
from underpaint.cli.app import app, own_first
from underpaint.cli.tables import Column, ResultTable, figure, interval, show, with_interval
from underpaint.cli.terminal import Format, be_quiet, progress
from underpaint.cli.train.stages import stages

COLUMNS = (
    Column("name"),
    figure("speed", "speed-\nup", ".2f", "x"),
    Column("lossless"),
    Column("why", "the reason", prose=True),
    *(figure(f"figure_{at}", f"figure\nnumber {at}", ".1f") for at in range(12)),
)
ROWS = [
    {"name": "adt", "speed": 1.234, "lossless": True, "why": "a long | reason " * 6, "figure_0": 4.0},
    {"name": "eagle2", "speed": None, "lossless": False, "why": "", **{f"figure_{at}": 1.0 for at in range(12)}},
]
TABLE = ResultTable("results", COLUMNS, ROWS)


@pytest.mark.parametrize("width", [60, 80, 120, 400])
def test_a_table_fits_its_width_and_says_everything(
    width: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", str(width))
    show([TABLE])
    text = capsys.readouterr().out
    assert max(len(line) for line in text.splitlines()) <= width
    assert "…" not in text
    for column in COLUMNS:
        assert column.heading.split("\n")[-1].split()[-1] in text
    assert "1.23x" in text
    assert text.count("adt") == text.count("eagle2") >= 1
    assert (text.count("adt") == 1) == (width == 400)


def test_without_a_terminal_a_table_has_120_columns(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)
    show([TABLE])
    widest = max(len(line.rstrip()) for line in capsys.readouterr().out.splitlines())
    assert 80 < widest <= terminal.PIPED_WIDTH


def test_programs_read_values_and_people_read_cells(capsys: pytest.CaptureFixture[str]) -> None:
    show([TABLE], Format.json)
    rows = json.loads(capsys.readouterr().out)
    assert [row["speed"] for row in rows] == [1.234, None]
    assert rows[0]["lossless"] is True
    show([TABLE], Format.csv)
    read = list(csv.DictReader(io.StringIO(capsys.readouterr().out)))
    assert [row["speed"] for row in read] == ["1.234", ""]
    assert (read[0]["lossless"], read[0]["why"]) == ("yes", ROWS[0]["why"])
    show([TABLE], Format.markdown)
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "**results**"
    unescaped = [line.replace("\\|", "") for line in lines[2:]]
    assert {line.count("|") for line in unescaped} == {len(COLUMNS) + 1}
    assert "| 1.23x | yes |" in lines[4]
    show([TABLE, ResultTable("others", COLUMNS[:1], [{"name": "ar"}])], Format.json)
    assert json.loads(capsys.readouterr().out)["others"] == [{"name": "ar"}]


def test_intervals_are_one_cell_for_people_and_numbers_for_programs(capsys: pytest.CaptureFixture[str]) -> None:
    columns = (Column("name"), interval("speedup", "95 %", ".2f"), with_interval("auc", "AUC", "+.3f"))
    rows = [
        {"name": "adt", "speedup_low": 1.125, "speedup_high": 1.5, "auc": 0.5, "auc_low": 0.25, "auc_high": 0.75},
        {"name": "ar", "speedup_low": None, "speedup_high": None, "auc": 0.5, "auc_low": None, "auc_high": None},
        {"name": "zipar"},
    ]
    table = ResultTable("", columns, rows)
    show([table], Format.markdown)
    assert capsys.readouterr().out.splitlines()[2:] == [
        "| adt | 1.12-1.50 | +0.500 (+0.250 to +0.750) |",
        "| ar | - | +0.500 |",
        "| zipar | - | - |",
    ]
    show([table], Format.csv)
    text = capsys.readouterr().out
    read = list(csv.reader(io.StringIO(text)))
    assert read[0] == ["name", "speedup_low", "speedup_high", "auc", "auc_low", "auc_high"]
    assert [[float(cell) for cell in row[1:] if cell] for row in read[1:]] == [[1.125, 1.5, 0.5, 0.25, 0.75], [0.5], []]
    show([table], Format.json)
    assert [row.get("auc_high") for row in json.loads(capsys.readouterr().out)] == [0.75, None, None]


@pytest.mark.parametrize(
    ("given", "read"),
    [
        (["compare", "--plugin", "a.py", "--seeds", "2"], ["--plugin", "a.py", "compare", "--seeds", "2"]),
        (["compare", "--plugin=a.py", "-q"], ["--plugin=a.py", "-q", "compare"]),
        (["compare", "--", "--quiet"], ["compare", "--", "--quiet"]),
        (["compare", "--plugin"], ["--plugin", "compare"]),
    ],
)
def test_own_options_stand_anywhere(given: Sequence[str], read: Sequence[str]) -> None:
    assert own_first(given) == list(read)


def test_plugins_are_loaded_wherever_they_are_named() -> None:
    program = "from underpaint.cli.app import main; main()"
    command = [sys.executable, "-c", program, "exact", "last_first", "--model", "near", "--json", "-"]
    done = subprocess.run([*command, "--plugin", "docs/examples/last_first.py"], capture_output=True, text=True)
    assert json.loads(done.stdout)["rule"] == "last_first", done.stderr


@pytest.mark.parametrize("command", ["", *subcommands(groups=True)])
def test_every_command_answers_to_h(command: str) -> None:
    done = CliRunner().invoke(app, [*command.split(), "-h"])
    assert done.exit_code == 0
    assert done.stdout == CliRunner().invoke(app, [*command.split(), "--help"]).stdout
    assert "Usage" in done.stdout


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_is_printed_and_nothing_is_edited(tmp_path: Path, shell: str) -> None:
    program = [sys.executable, "-c", "from underpaint.cli.app import main; main()", "--show-completion", shell]
    home = {"HOME": str(tmp_path), "PATH": os.environ["PATH"], "_TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION": "1"}
    done = subprocess.run(program, env=home, capture_output=True, text=True)
    assert "_UNDERPAINT_COMPLETE" in done.stdout, done.stderr
    assert os.listdir(tmp_path) == []


def test_a_shell_is_told_what_could_stand_next() -> None:
    program = [sys.executable, "-c", "from underpaint.cli.app import main; main()"]
    line = {"_UNDERPAINT_COMPLETE": "complete_bash", "COMP_WORDS": "underpaint cer", "COMP_CWORD": "1"}
    done = subprocess.run(program, env={**os.environ, **line}, capture_output=True, text=True)
    assert done.stdout.split() == ["certify"], done.stderr


def test_progress_is_plain_lines_where_there_is_no_terminal(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(terminal, "_EVERY", 0.0)
    with progress("drawing", 3) as advance:
        for done in range(1, 4):
            advance(done)
    captured = capsys.readouterr()
    assert captured.out == ""
    assert [line.split(",")[0] for line in captured.err.splitlines()] == [f"drawing: {done} of 3" for done in range(4)]
    be_quiet(True)
    try:
        with progress("drawing", 3) as advance:
            advance(1)
        terminal.note("beside JSON", Format.json)
        terminal.note("beside a table")
        assert capsys.readouterr() == ("", "")
    finally:
        be_quiet(False)


def test_each_stage_has_its_progress_and_bytes_are_told_as_mib(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(terminal, "_EVERY", 0.0)
    with stages() as report:
        for done in (0, 1 << 20, 3 << 20):
            report("fetching", done, 3 << 20, "bytes")
        report("drawing", 1, 2, "pictures")
    lines = [line.split(",")[0] for line in capsys.readouterr().err.splitlines()]
    assert "fetching: 1.0 of 3.0 MiB" in lines
    assert lines[-1] == "drawing: 1 of 2"


def test_a_bar_ends_with_its_stage(monkeypatch: pytest.MonkeyPatch) -> None:
    ended: list[str] = []

    @contextmanager
    def shown(what: str, *_: object) -> Iterator[Callable[[int], None]]:
        yield lambda _: None
        ended.append(what)

    monkeypatch.setattr("underpaint.cli.train.stages.progress", shown)
    with stages() as report:
        report("drawing", 1, 2, "pictures")
        assert ended == []
        report("drawing", 2, 2, "pictures")
        assert ended == ["drawing"]


def test_ctrl_c_says_what_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    import underpaint.sim.exact.rule_report as reports

    def stop(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(reports, "exact_report", stop)
    done = CliRunner().invoke(app, ["exact", "point"])
    assert done.exit_code == 130
    assert done.stderr == "stopped: nothing of what was not finished is kept\n"

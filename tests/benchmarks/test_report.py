import argparse
import json

import pytest

from benchmarks.report import at_least, finish, options, parse, refusing


def test_the_figures_of_the_last_line_are_in_the_file(tmp_path, capsys):
    out = tmp_path / "found.json"
    out.write_text("an older run")
    print("a table")
    finish({"benchmark": "some"}, out)
    table, line = capsys.readouterr().out.splitlines()
    assert table == "a table"
    assert json.loads(out.read_text()) == json.loads(line)
    assert list(tmp_path.iterdir()) == [out]


@pytest.mark.parametrize("text", ["0", "-1", "1.5", "many", "", "1e3"])
def test_numbers_below_the_least_and_other_texts_are_refused(text):
    with pytest.raises(argparse.ArgumentTypeError, match="expected a whole number from 1"):
        at_least(1)(text)
    assert at_least(0)("0") == 0


def test_what_was_asked_for_in_vain_is_one_line_and_code_2(tmp_path, capsys):
    parser = options("some", "What it asks.")
    with pytest.raises(SystemExit) as stopped, refusing(parser):
        raise ValueError("there is no model")
    assert stopped.value.code == 2
    assert capsys.readouterr().err.splitlines()[-1] == "python -m benchmarks.some: error: there is no model"
    with pytest.raises(SystemExit):
        parse(parser, ["--out", str(tmp_path)])
    assert "it is a folder; name a file in it" in capsys.readouterr().err

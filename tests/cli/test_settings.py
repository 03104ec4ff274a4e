"""Settings are read strictly: each once, in ASCII digits, within stated bounds."""

from pathlib import Path

import pytest

from tests.cli.program import run_program


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("exact cool --set delta=1 --set delta=2", "'delta' is given 2 times, 1 and 2"),
        ("exact cool --set delta=1 --set ' delta = 1'", "given 2 times"),
        ("exact chain --policy eagle2 --set-policy depth=1 --set-policy depth=2", "'depth' is given 2 times"),
        ("generate cat --method adt --set beta=1 --set policy.beta=2", "given twice, as beta and as policy.beta"),
        ("generate cat --method gsd --set window=4 --set window=5", "given 2 times"),
        ("generate cat --method mulo --set tau=1 --set tau=1", "given 2 times"),
        ("compare --methods adt --set adt.beta=1 --set adt.beta=2", "given 2 times"),
        ("exact cool --set delta=1e-400", "0 or of size 1e-30 to 1e+09"),
        ("exact lantern --set delta=1e-400", "0 or of size 1e-30 to 1e+09"),
        ("exact cool --set delta=1e308", "0 or of size 1e-30 to 1e+09"),
        ("exact cool --set delta=1e7", "at most 1e+06"),
        ("exact cool --set nu=51", "cool: nu must be at most 50, got 51"),
        ("exact cool --set mu=1e8", "cool: mu must be at most 50, got 1"),
        ("exact cool --set mu=-51", "cool: mu must be at least -50, got -51"),
        ("exact lantern_pp --set factor=1e8", "lantern_pp: factor must be at most 1e+06, got 1"),
        ("generate cat --method adt --set beta=1e308", "0 or of size"),
        ("generate cat --method chain:fly --set threshold=inf", "'threshold' is a number, got 'inf'; expected 0 or of"),
        ("generate cat --method chain:typical --set alpha=inf", "'alpha' is a number, got 'inf'; expected 0 or of"),
        ("compare --methods mulo --set mulo.tau=Infinity", "'tau' is a number, got 'Infinity'; expected 0 or of"),
        ("compare --methods adt --set adt.beta=2e9", "size 1e-30 to 1e+09"),
        ("exact lantern --set k=\u0663", "in digits 0 to 9"),
        ("exact lantern --set k=1_0", "in digits 0 to 9"),
        ("exact lantern --set k=99999999999999999999", "2,147,483,647"),
        ("exact chain --max-nodes \u0663", "in digits 0 to 9"),
        ("exact chain --max-nodes 1_0", "in digits 0 to 9"),
        ("premises --temperature 1e-400", "number of size"),
        ("premises --temperature \u0661", "in digits 0 to 9"),
        ("simulate sweep --machines a100/llamagen-xl/batch1000000000000", "from 1 to 65,536"),
        ("simulate sweep --machines a100/llamagen-xl/batch\u0663", "from 1 to 65,536"),
        ("evaluate --shard 1/99999999999999999999", "n up to 1,000,000"),
        ("evaluate --shard \u0661/\u0662", "n up to 1,000,000"),
        ("evaluate --models z@\u0666\u0664", "z@\u0666\u0664"),
        ("export --kind tar-lm z --out x --grid \u0664", "in digits 0 to 9"),
        ("export --kind tar-lm z --out x --grid 4_0x40", "in digits 0 to 9"),
        ("export --kind tar-lm z --out x --grid 4x5x6", "in digits 0 to 9"),
    ],
)
def test_a_setting_that_cannot_be_meant_is_refused_with_its_bounds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, line: str, says: str
) -> None:
    done = run_program(line, tmp_path, monkeypatch)
    assert (done.code, done.crash) == (2, ""), done
    assert says in " ".join(done.err.replace("\u2502", " ").split()), done.err
    assert list(tmp_path.iterdir()) == []

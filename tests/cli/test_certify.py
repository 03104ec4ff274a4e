"""`underpaint certify` and `underpaint results`: exit codes and files that replay."""

import json
import os
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from typer.testing import CliRunner

from underpaint.artifacts.origin import kind_of
from underpaint.artifacts.results import with_envelope
from underpaint.cli.app import app
from underpaint.sim.certify.case import VerifierCase

ROOT = Path(__file__).parents[2]
KERNEL = f"{ROOT / 'docs' / 'examples' / 'kernels.py'}:chain_rejection"
FEW = ("--cases", "3", "--shrink-seconds", "1")


def called(*arguments):
    return CliRunner().invoke(app, [str(one) for one in arguments])


def write_case(path, target, case):
    finding = {"how": "quantiles", "total_variation": 0.1, "node": None, "fault": None, "difference": None}
    values = {"verifier": {"target": target}, "case": case.to_dict(), "finding": finding}
    path.write_text(json.dumps(with_envelope("certify-case", {"processor": "p"}, "underpaint certify", values)))


def replay_command(output):
    """The arguments of the printed command that replays a case."""
    return shlex.split(output.partition("again with: underpaint ")[2].split("\n")[0])


def test_a_failing_case_replays(tmp_path):
    out, certificate = tmp_path / "case.json", tmp_path / "certificate.json"
    done = called("certify", "gallery:no-residual", *FEW, "--out", out, "--json", certificate)
    assert done.exit_code == 1
    assert "BIASED" in done.output
    assert "at node 0" in done.output
    assert "decides exactly as the known mistake no-residual" in done.output
    failing_case = json.loads(out.read_text())
    assert failing_case["finding"]["node"] == 0
    assert json.loads(certificate.read_text())["findings"][0]["case"] == failing_case["case"]
    again = called("certify", "--replay", out)
    assert again.exit_code == 1
    assert f"{failing_case['finding']['total_variation']:.4g}" in again.output
    assert called("certify", "gallery:right", "--replay", out).exit_code == 0
    kept = called("certify", "--replay", out, "--promise", "tv<=0.9")
    assert kept.exit_code == 0
    assert "within its bound on this case" in kept.output
    assert called("results", "validate", out, certificate).exit_code == 0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((), "name a verifier"),
        (("gallery:wright",), "did you mean 'right'"),
        (("rule:lantern",), "needs a codebook"),
        (("none.py:verify",), "there is no file none.py"),
        (("gallery:right", "--as", "sglang"), "leave the option out"),
        (("gallery:right", "--as", "kernel"), "--as: expected one of function"),
        (("gallery:right", "--drawn", "greedy"), "--drawn: expected one of iid"),
        ((KERNEL, "--as", "flashinfer", "--drawn", "top_k"), "judged on iid trees"),
        (("rule:point", "--drawn", "iid"), "covers top_k trees"),
        (("gallery:right", "--own-seed"), "--own-seed is for --as process"),
        (("gallery:right", "--margin", "0"), "--margin: expected"),
        (("no-such-program", "--as", "process"), "cannot be started"),
        (("", "--as", "process"), "an empty one"),
        (("gallery:right", "--out", "/proc/case.json"), "cannot write"),
        (("rule:point", "--out", "case.py"), "a script can call a Python function"),
        ((KERNEL, "--as", "sglang", "--out", "case.py"), "a script can call a Python function"),
        (("rule:point", "--promise", "limit=1: tv<=0.1"), "rule 'point': unknown setting 'limit'"),
        (("--live", "model", "--promise", "tv<=0.1"), "--promise is for judging a verifier; leave it out with --live"),
        (("--live", "model", "--strict"), "--strict is for judging a verifier; leave it out with --live"),
        (("--live", "model", "--seconds", "60"), "--seconds is for judging a verifier; leave it out with --live"),
        (("--live", "model", "--methods", ","), "--methods: expected one or more, got none"),
        (("gallery:right", "--format", "json"), "--format is for --gallery and --live"),
        (("--replay", "none.json", "--drawn", "iid"), "--drawn is for a certificate; leave it out with --replay"),
        (("--replay", "none.json", "--out", "case.json"), "--out is for a certificate; leave it out with --replay"),
        (("--replay", "none.json", "--as", "rule"), "--as is for another verifier than the file's; name it too"),
        (("--replay", "none.json"), "there is no such file"),
    ],
)
def test_bad_input_ends_with_2(tmp_path, monkeypatch, arguments, message):
    monkeypatch.chdir(tmp_path)
    done = called("certify", *arguments)
    assert done.exit_code == 2, done.output
    assert message in done.stderr
    assert "Traceback" not in done.output
    assert list(tmp_path.iterdir()) == []


def test_only_a_case_replays(tmp_path):
    certificate = tmp_path / "certificate.json"
    assert called("certify", "rule:point", *FEW, "--json", certificate).exit_code == 0
    done = called("certify", "--replay", certificate)
    assert done.exit_code == 2
    assert "expected a failing case" in done.stderr


def test_a_case_replays_on_a_verifier_of_its_trees_alone(tmp_path):
    out = tmp_path / "case.json"
    write_case(out, "rule:block", VerifierCase(3, (-1, 0, 0), "iid", ((1, 2, 3),), ((1, 1, 1),)))
    done = called("certify", "--replay", out)
    assert done.exit_code == 2
    assert "expected a chain, as rule:block is judged on chains alone" in done.stderr
    done = called("certify", "rule:point", "--replay", out)
    assert done.exit_code == 2
    assert "rule 'point' covers top_k trees" in done.stderr
    assert called("certify", "rule:multi_round", "--replay", out).exit_code == 0


def test_a_case_of_chains_replays_on_its_kernel(tmp_path):
    out, target = tmp_path / "case.json", KERNEL.replace("chain_rejection", "chain_no_residual")
    options = ("--as", "flashinfer", "--cases", 1, "--shrink-seconds", 0, "--out", out)
    assert called("certify", target, *options).exit_code == 1
    again = called("certify", "--replay", out)
    assert again.exit_code == 1, again.output
    assert "biased on this case" in again.stdout


def test_the_gallery_lists_every_mistake():
    from underpaint.sim.certify.mistakes import MISTAKES

    done = called("certify", "--gallery")
    assert done.exit_code == 0
    assert all(mistake.name in done.output for mistake in MISTAKES)


def test_results_are_ranked():
    ours = ROOT / "benchmarks" / "results"
    files = [ours / name for name in ("textured-compare-128-t0.json", "textured-compare-128-t1.json")]
    rows = json.loads(called("results", "rank", *files, "--json", "-").output)
    assert rows == sorted(rows, key=lambda row: (-row["temperature"], -row["speedup"]))
    assert {side for row in rows for side, one in row["sides"].items() if one} == {"A", "B"}  # two processors
    result = called("results", "rank", *files)
    assert result.exit_code == 0
    assert "A: speedup" in result.output


def test_bad_results_end_with_2(tmp_path):
    for arguments in (
        ("validate", tmp_path / "none.json"),
        ("rank", ROOT / "pyproject.toml"),
        ("rank", ROOT / "benchmarks" / "results" / "llamagen-b.json"),
    ):
        done = called("results", *arguments)
        assert done.exit_code == 2, done.output
        assert "error: " in done.stderr


BAD = """
import os
from underpaint.sim.certify.mistakes import BY_NAME, RIGHT


def one_argument(draft):
    open("called", "w").close()
    return (), 0


def raises(draft, uniforms):
    raise KeyError("left out")


def no_decision(draft, uniforms):
    return 5


def talks(draft, uniforms):
    print("in Python")
    os.write(1, b"below it")
    return RIGHT(draft, uniforms)


def wrong(draft, uniforms):
    return BY_NAME["pair-not-normalised"].verify(draft, uniforms)
"""


@pytest.fixture
def folder(tmp_path, monkeypatch):
    (tmp_path / "mine.py").write_text(BAD)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize(
    ("target", "message"),
    [
        ("mine.py:one_argument", "expects a function of (draft, uniforms), got one of (draft)"),
        ("json:loads", "json is Python's own module"),
        ("os:system", "os is Python's own module"),
        ("mine.py:raises", "its first call is no decision (crash: KeyError: 'left out')"),
        ("mine.py:no_decision", "its first call is no decision (bad reply"),
    ],
)
def test_what_is_no_verifier_is_bad_input(folder, target, message):
    done = called("certify", target)
    assert done.exit_code == 2
    assert message in done.stderr
    assert {path.name for path in folder.iterdir()} <= {"mine.py", "__pycache__"}


LATER = """
import time
from underpaint.sim.certify.mistakes import RIGHT
from underpaint.testing import scripted_noise


def verify(draft, uniforms, act):
    return act() if uniforms[1] < 0.25 else RIGHT(draft, uniforms)


def fail():
    raise RuntimeError("out of memory")


def ask_for_more(uniforms):
    import random
    with scripted_noise(uniforms):
        return [random.random() for _ in range(len(uniforms) + 1)]


raises = lambda draft, uniforms: verify(draft, uniforms, fail)
hangs = lambda draft, uniforms: verify(draft, uniforms, lambda: time.sleep(600))
shape = lambda draft, uniforms: verify(draft, uniforms, lambda: ((), [0, 1]))
noise = lambda draft, uniforms: verify(draft, uniforms, lambda: ask_for_more(uniforms))
token = lambda draft, uniforms: verify(draft, uniforms, lambda: ((), draft.target_probs.shape[1]))
"""


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("raises", "crash: RuntimeError: out of memory"),
        ("hangs", "hang: no answer within 1 s"),
        ("shape", "bad reply: expected (path, token)"),
        ("noise", "noise: it asked for 5 uniforms, the layout has 4"),
        ("token", "bad token at node 0: token 4 is outside the vocabulary of 4"),
    ],
)
def test_a_fault_after_the_first_call_is_named_with_its_case_and_ends_with_1(folder, name, message):
    (folder / "later.py").write_text(LATER)
    quick = ("--drawn", "iid", "--chain", "--cases", 1, "--shrink-seconds", 0)
    done = called("certify", f"later.py:{name}", *quick, "--timeout", 1 if name == "hangs" else 120)
    assert done.exit_code == 1, done.output
    assert "FAULTY" in done.output
    assert message in done.output
    finding = json.loads((folder / "failing-case.json").read_text())["finding"]
    assert finding["fault_noise"][1] < 0.25


def test_what_a_verifier_prints_stays_out_of_the_json(folder):
    command = [sys.executable, "-m", "underpaint", "certify", "mine.py:talks", "--cases", "2", "--json", "-"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600, check=True)
    assert json.loads(done.stdout)["verdict"] == "lossless"
    assert "in Python" in done.stderr
    assert "below it" in done.stderr


@pytest.mark.parametrize("seed", [0, 1, 2, 3])
def test_a_residual_that_is_not_normalised_for_two_tokens_is_found_at_every_seed(folder, seed):
    done = called("certify", "mine.py:wrong", "--drawn", "iid", "--seed", seed, "--cases", 1, "--shrink-seconds", 0)
    assert done.exit_code == 1, done.output


@pytest.mark.parametrize("script", ["while true; do printf xxxxxxxxxxxxxxxx; done", "yes '{\"id\": 0}'"])
def test_a_program_that_writes_without_end_is_ended(folder, script):
    (folder / "endless.sh").write_text(f"#!/bin/sh\n{script}\n")
    done = called("certify", "--as", "process", "--timeout", 120, "sh endless.sh")
    assert done.exit_code == 2
    assert "its first call is no decision (bad reply" in done.stderr


PLUGIN = """
import dataclasses, time
from underpaint.algos.accept import RULES


@dataclasses.dataclass(frozen=True)
class Rule:
    def __call__(self, tree, probs, chance):
        {body}


RULES.register(dataclasses.replace(RULES["point"], name="{name}", make=Rule))
"""


def test_a_rule_of_a_plug_in_that_sleeps_is_stopped_and_its_case_replays_from_any_folder(tmp_path):
    plugin, elsewhere = tmp_path / "sleepy.py", tmp_path / "elsewhere"
    elsewhere.mkdir()
    plugin.write_text(PLUGIN.format(name="sleepy", body="time.sleep(600)"))
    program = [sys.executable, "-m", "underpaint"]
    done = subprocess.run(
        [*program, "--plugin", "sleepy.py", "certify", "rule:sleepy", "--timeout", "0.5"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert done.returncode == 1, done.stderr
    assert "hang: no answer within 0.5 s" in done.stdout
    command = replay_command(done.stdout)
    assert command[-1] == "--timeout=0.5"
    again = subprocess.run(
        [*program, *command],
        cwd=elsewhere,
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert again.returncode == 1, again.stderr
    assert "hang: no answer within 0.5 s" in again.stdout


def test_a_replay_keeps_the_precision_of_the_verifier(folder):
    # The rows of this case are exact in bfloat16, and the bias is below what bfloat16's rounding explains.
    (folder / "near.py").write_text(
        "def verify(draft, uniforms):\n    return (), int(uniforms[-1] >= draft.target_probs[0][0] + 0.02)\n"
    )
    case = VerifierCase(2, (-1, 0), "top_k", ((1, 1),), ((1, 0),))
    write_case(folder / "case.json", "near.py:verify", case)
    assert called("certify", "--replay", "case.json").exit_code == 1
    assert called("certify", "--replay", "case.json", "--bits", 8).exit_code == 0
    assert called("certify", "--replay", "case.json", "--bits", 7).exit_code == 2


def test_a_replay_repeats_the_options_that_judge(tmp_path):
    options = (
        "--margin",
        0.05,
        "--seed",
        3,
        "--promise",
        "tv<=0.01",
        "--strict",
        *FEW,
        "--out",
        tmp_path / "case.json",
    )
    done = called("certify", "gallery:no-residual", *options)
    assert done.exit_code == 1
    command = replay_command(done.output)
    assert command[-4:] == ["--margin=0.05", "--seed=3", "--promise=tv<=0.01", "--strict"]
    assert called(*command).exit_code == 1


def test_a_failing_file_replays_from_any_folder(folder):
    done = called("certify", "mine.py:wrong", "--drawn", "iid", "--cases", 1, "--shrink-seconds", 0)
    command = replay_command(done.stdout)
    (folder / "elsewhere").mkdir()
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder / "elsewhere")
        again = called(*command)
    assert again.exit_code == 1, again.output
    assert "biased on this case" in again.stdout


def test_ctrl_c_ends_certify_with_one_line(folder):
    body = "    open('begun', 'w').close()\n    time.sleep(600)\n"
    (folder / "slow.py").write_text(f"import time\n\n\ndef verify(draft, uniforms):\n{body}")
    # A shell's background job ignores SIGINT, and so would what it starts.
    program = (
        "import runpy, signal; signal.signal(signal.SIGINT, signal.default_int_handler); "
        "runpy.run_module('underpaint', run_name='__main__', alter_sys=True)"
    )
    command = [sys.executable, "-c", program, "certify", "slow.py:verify", "--timeout", "600"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True, process_group=0) as child:
        try:
            end = time.monotonic() + 600
            while not (folder / "begun").exists():
                assert child.poll() is None
                assert time.monotonic() < end
                time.sleep(0.02)
            os.killpg(child.pid, signal.SIGINT)
            out, err = child.communicate(timeout=600)
        finally:
            child.kill()
    assert (child.returncode, out, err) == (130, "", "stopped: nothing was written\n")


def test_a_case_is_shrunk_without_hypothesis(folder, monkeypatch):
    monkeypatch.setitem(sys.modules, "hypothesis", None)
    options = ("--drawn", "iid", "--cases", 1, "--shrink-seconds", 600, "--json", "found.json")
    done = called("certify", "mine.py:wrong", *options)
    assert done.exit_code == 1
    (finding,) = json.loads((folder / "found.json").read_text())["findings"]
    assert finding["shrunk"]
    assert len(finding["case"]["parents"]) == 3
    assert finding["case"]["vocab_size"] <= 3


def test_a_boundary_ends_with_0_and_a_warning_and_with_1_if_strict(tmp_path):
    quick = ("--cases", "2", "--shrink-seconds", "0", "--out", tmp_path / "case.json")
    done = called("certify", "gallery:accept-at-zero", "--drawn", "top_k", *quick)
    assert done.exit_code == 0
    assert "lossless but for a boundary" in done.output
    assert "warning: " in done.output
    assert not (tmp_path / "case.json").exists()
    assert called("certify", "gallery:accept-at-zero", "--drawn", "top_k", "--strict", *quick).exit_code == 1
    assert json.loads((tmp_path / "case.json").read_text())["finding"]["fault"]["kind"] == "impossible token"
    assert called("certify", "--replay", tmp_path / "case.json").exit_code == 0
    assert called("certify", "--replay", tmp_path / "case.json", "--strict").exit_code == 1


def test_a_promise_is_judged_setting_by_setting(tmp_path):
    relaxed = ("certify", ROOT / "docs" / "examples" / "verifiers.py:relaxed", "--cases", "2", "--shrink-seconds", "0")
    relaxed = (*relaxed, "--out", tmp_path / "case.json")
    done = called(*relaxed, "--promise", "share=0.3: tv<=0.3", "--promise", "share=0.3: tv<=0.1")
    assert done.exit_code == 1
    assert "share=0.3: within its bound (promised: total variation 0.3)" in done.output
    assert "share=0.3: BIASED (promised: total variation 0.1)" in done.output
    assert called(*relaxed, "--promise", "tv<=0.05").exit_code == 0
    assert called(*relaxed, "--promise", "share=0.3: tv<=0.3", "--promise", "tv<=0.05").exit_code == 0
    for wrong in ("0.1", "tv<=2", "share: tv<=0.1", "tv<0.1"):
        assert 'expected "tv<=X"' in called(*relaxed, "--promise", wrong).stderr
    assert "one setting at a time" in called(*relaxed, *["--promise", "tv<=1"] * 2, "--json", "-").stderr


@pytest.mark.parametrize(("name", "interface"), [("first", "function"), ("alone", "session"), ("chain", "flashinfer")])
def test_a_script_shows_the_bias_without_this_project(tmp_path, monkeypatch, name, interface):
    (tmp_path / "theirs.py").write_text(THEIRS)
    monkeypatch.chdir(tmp_path)
    done = called(
        "certify", f"theirs.py:{name}", "--as", interface, "--cases", 1, "--shrink-seconds", 3, "--out", "case.py"
    )
    assert done.exit_code == 1, done.output
    script = (tmp_path / "case.py").read_text()
    assert kind_of(tmp_path / "case.py") == "py", "the same command may replace it"
    assert "underpaint." not in script
    assert len(script.splitlines()) <= 35
    process = subprocess.run(
        [sys.executable, "-I", "case.py"], capture_output=True, text=True, cwd=tmp_path, timeout=300
    )
    assert process.returncode == 0, process.stderr
    expected, actual = (eval(line[line.index("[") : line.index("]") + 1]) for line in process.stdout.splitlines())
    assert max(abs(one - other) for one, other in zip(expected, actual, strict=True)) > 0.05


def test_a_case_that_no_script_holds_is_written_beside_it(tmp_path, monkeypatch):
    monkeypatch.setattr("underpaint.sim.certify.reproduce.MOST_ROWS", 2)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "theirs.py").write_text(THEIRS)
    done = called("certify", "theirs.py:first", "--cases", 1, "--shrink-seconds", 0, "--out", "case.py")
    assert done.exit_code == 1, done.output
    assert "no script was written: the smallest case has 5 distributions, a script holds 2" in done.output
    assert not (tmp_path / "case.py").exists()
    assert replay_command(done.output)[-1] == str(tmp_path / "case.py.json")
    assert called(*replay_command(done.output)).exit_code == 1


THEIRS = """
import numpy as np


def first(draft, uniforms):
    return [], 0


def alone(models):
    return lambda tokens, uniforms: [0]


def chain(draft_probs, draft_token_ids, uniform_samples, target_probs):
    found = np.full((len(draft_token_ids), draft_token_ids.shape[1] + 1), -1)
    found[:, 0] = 0
    return found
"""

"""Verifiers from outside: found, called, and survived, whatever they do."""

import os
import re
import select
import sys
import textwrap
from contextlib import nullcontext
from pathlib import Path

import numpy as np
import pytest

from underpaint.algos.accept import RULES
from underpaint.sim.certify.adapters import Spec, find_callable, open_verifier, verifier_of
from underpaint.sim.certify.case import VerifierCase, case_from_dict
from underpaint.sim.certify.certificate import certify
from underpaint.sim.certify.isolated import open_isolated
from underpaint.sim.certify.measure import measure
from underpaint.sim.certify.measurement import Effort
from underpaint.sim.certify.process import ProcessVerifier
from underpaint.sim.certify.verifier import VerifierStopped

CASE = VerifierCase(2, (-1, 0, 1), "top_k", ((1, 1),), ((1, 0),))
CHAIN = VerifierCase(2, (-1, 0, 1), "iid", ((1, 1),), ((1, 2),))
QUICK = Effort(checks=64, margin=0.2)
EXAMPLES = Path(__file__).parents[3] / "docs" / "examples"


def found_on(tmp_path, body, interface="function", case=CASE, seconds=None):
    path = tmp_path / "theirs.py"
    path.write_text(textwrap.dedent(body))
    spec = Spec(f"{path}:verify", interface)
    with nullcontext(open_verifier(spec)) if seconds is None else open_isolated(spec, seconds) as verifier:
        return measure(case, verifier, QUICK)


@pytest.mark.parametrize(
    ("body", "kind", "detail"),
    [
        ("def verify(draft, uniforms): raise RuntimeError('no')", "crash", "RuntimeError: no"),
        ("import os\ndef verify(draft, uniforms): os._exit(7)", "crash", "code 7"),
        ("import os\ndef verify(draft, uniforms): os.kill(os.getpid(), 11)", "crash", "code -11"),
        ("import time\ndef verify(draft, uniforms): time.sleep(60)", "hang", "within 1 s"),
        ("def verify(draft, uniforms): return None", "bad reply", r"expected \(path, token\)"),
        ("def verify(draft, uniforms): return (), 0.5", "bad reply", r"expected \(path, token\)"),
        ("def verify(draft, uniforms): return (), 2", "bad token", "outside the vocabulary of 2"),
        ("def verify(draft, uniforms): return (), -1", "bad token", "outside the vocabulary of 2"),
        ("def verify(draft, uniforms): return (2,), 0", "bad path", "node 2 is no child of node 0"),
        ("def verify(draft, uniforms): return (0,), 0", "bad path", "no node 0 below the root"),
        ("def verify(draft, uniforms): return (1, 5), 0", "bad path", "no node 5"),
    ],
)
def test_what_no_verifier_may_do_is_a_finding(tmp_path, body, kind, detail):
    measurement = found_on(tmp_path, body, seconds={"crash": 120.0, "hang": 1.0}.get(kind))
    assert measurement.failed
    assert measurement.fault.kind == kind
    assert re.search(detail, measurement.fault.detail)
    assert len(measurement.fault_noise) == 4


def test_a_verifier_that_stopped_is_started_anew(tmp_path):
    path = tmp_path / "once.py"
    path.write_text("import os\ndef verify(draft, uniforms):\n    os._exit(3)\n")
    with open_isolated(Spec(f"{path}:verify"), 120.0) as verifier:
        assert measure(CASE, verifier, QUICK).fault.kind == "crash"
        assert measure(CASE, verifier, QUICK).fault.kind == "crash"


def test_a_verifier_cannot_change_what_it_is_judged_by(tmp_path):
    body = """
        def verify(draft, uniforms):
            draft.target_probs[:] = [1.0, 0.0]
            uniforms[:] = 0.0
            return (), 0
    """
    assert found_on(tmp_path, body).difference.found == (1.0, 0.0)


def test_a_verifier_may_write_into_its_draft(tmp_path):
    body = """
        from underpaint.sim.certify.mistakes import RIGHT
        def verify(draft, uniforms):
            verdict = RIGHT(draft, uniforms)
            draft.tree.tokens[:] = 0
            draft.tree.draft_probs[:] = draft.target_probs[:] = 0.0
            return verdict
    """
    assert found_on(tmp_path, body, case=CHAIN).kind == "lossless"

    def rule(tree, probs, chance):
        verdict = RULES["multi_round"].make()(tree, probs, chance)
        tree.tokens[:] = 0
        tree.draft_probs[:] = probs[:] = 0.0
        return verdict

    assert measure(CHAIN, verifier_of(rule, "rule")).kind == "lossless"


def test_what_it_prints_stays_out_of_the_report(tmp_path, capfd):
    found_on(tmp_path, "def verify(draft, uniforms):\n    print('noise')\n    return (), 0", seconds=120.0)
    assert "noise" not in capfd.readouterr().out


@pytest.mark.parametrize(
    ("interface", "body", "kind"),
    [
        ("sglang", "def verify(**arrays): raise ValueError('shape')", "crash"),
        ("sglang", "def verify(accept_token_num, **arrays): accept_token_num[:] = 9", "bad path"),
        ("sglang", "def verify(accept_index, **arrays): accept_index[:, 0] = 1", "bad path"),
        ("flashinfer", "def verify(**arrays): return None", "bad reply"),
        ("flashinfer", "def verify(draft_token_ids, **arrays): return draft_token_ids", "bad reply"),
        (
            "flashinfer",
            "import numpy as np\ndef verify(draft_probs, **a): return np.full((len(draft_probs), 3), -1)",
            "bad reply",
        ),
        (
            "vllm",
            "import numpy as np\ndef verify(num_draft_tokens, **a): return np.zeros((len(num_draft_tokens), 3))",
            "bad reply",
        ),
    ],
)
def test_layouts_read_with_suspicion(tmp_path, interface, body, kind):
    assert found_on(tmp_path, body, interface, CASE if interface == "sglang" else CHAIN).fault.kind == kind


RAISES_AT_TOKEN_1 = {
    "flashinfer": """
        import numpy as np
        def verify(draft_token_ids, **arrays):
            if (draft_token_ids[:, 0] == 1).any():
                raise ValueError("token 1")
            found = np.full((len(draft_token_ids), 3), -1)
            found[:, 0] = 0
            return found
    """,
    "transformers": """
        def verify(candidate_input_ids, **arrays):
            if candidate_input_ids[0, 1] == 1:
                raise ValueError("token 1")
            return candidate_input_ids[:, :1], 0
    """,
}


@pytest.mark.parametrize("interface", RAISES_AT_TOKEN_1)
def test_the_draft_at_which_a_kernel_raises_is_named(tmp_path, interface):
    measurement = found_on(tmp_path, RAISES_AT_TOKEN_1[interface], interface, CHAIN)
    assert measurement.fault.detail == "ValueError: token 1"
    assert measurement.fault_tokens == (0, 1, 0)


SLOW = {
    "flashinfer": """
        import time, numpy as np
        def verify(draft_token_ids, **arrays):
            time.sleep(0.01 * len(draft_token_ids))
            return np.concatenate([draft_token_ids, np.zeros_like(draft_token_ids[:, :1])], axis=1)
    """,
    "tensorrt-llm": """
        import time
        def verify(draft_tokens, **arrays):
            time.sleep(0.01)
            return [*draft_tokens, 0]
    """,
}


@pytest.mark.parametrize("interface", SLOW)
def test_a_slow_kernel_does_not_count_as_hung(tmp_path, interface):
    path = tmp_path / "theirs.py"
    path.write_text(textwrap.dedent(SLOW[interface]))
    drafts = [CHAIN.drafts[0].draft] * 120  # 1.2 s, and a limit of one second
    with open_isolated(Spec(f"{path}:verify", interface), 1.0) as verifier:
        assert verifier.decide(drafts, np.full((len(drafts), 4), 0.5)) == [((1, 2), 0)] * len(drafts)


@pytest.mark.parametrize(
    ("program", "kind", "detail"),
    [
        ("import sys; sys.exit('out of memory')", "crash", "code 1: out of memory"),
        ("import time; time.sleep(60)", "hang", "no line within"),
        ("import sys\nfor line in sys.stdin: print('hello', flush=True)", "bad reply", "expected a JSON line"),
        ("import sys\nfor line in sys.stdin: print('{}', flush=True)", "bad reply", "expected a reply to id"),
        (
            "import sys, json\nfor line in sys.stdin:\n"
            "    print(json.dumps({'id': json.loads(line)['id'], 'error': 'no kernel'}), flush=True)",
            "crash",
            "no kernel",
        ),
    ],
)
def test_programs_that_fail_are_findings(tmp_path, program, kind, detail):
    path = tmp_path / "program.py"
    path.write_text(program)
    with open_isolated(Spec(f"{sys.executable} {path}", "process"), 1.0 if kind == "hang" else 120.0) as verifier:
        measurement = measure(CASE, verifier, QUICK)
    assert measurement.fault.kind == kind
    assert detail in measurement.fault.detail


def test_what_a_program_started_ends_with_it(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "wrapper.sh").write_text(f"exec 3> {tmp_path / 'pipe'}\necho begun >&3\nsleep 60\nexit 0\n")
    verifier = ProcessVerifier(["sh", str(tmp_path / "wrapper.sh")])
    with (tmp_path / "pipe").open("rb", buffering=0) as pipe:
        assert pipe.readline() == b"begun\n"
        verifier.close()
        assert select.select([pipe], [], [], 10.0)[0], "a program still holds the pipe"
        assert pipe.read() == b""


def test_a_program_that_closes_its_output_and_runs_on_is_ended():
    with ProcessVerifier(["sh", "-c", "exec >&-; sleep 60; exit 0"], timeout=1.0) as verifier:
        draft = CASE.drafts[0].draft
        with pytest.raises(VerifierStopped) as stopped:
            verifier.decide([draft], np.full((1, 4), 0.5))
    assert stopped.value.fault.kind == "hang"
    assert stopped.value.fault.detail == "it closed its output and did not end within 1 s"


def test_a_right_program_passes():
    with open_isolated(Spec(f"{sys.executable} {EXAMPLES / 'verifier_process.py'}", "process"), 120.0) as verifier:
        certificate = certify(verifier, "top_k", count=2, effort=QUICK)
    assert certificate.lossless


@pytest.mark.parametrize(
    ("target", "message"),
    [
        ("verify", "expected module:function"),
        ("none.py:verify", "there is no file none.py"),
        ("underpaint.none:verify", "ModuleNotFoundError"),
        (f"{EXAMPLES / 'verifiers.py'}:verifi", "did you mean 'verify'"),
        ("math:pi", "math is Python's own module"),
        (f"{EXAMPLES / 'verifiers.py'}:FORGETFUL", "no function 'FORGETFUL'"),
    ],
)
def test_what_is_not_there_is_refused(target, message):
    with pytest.raises(ValueError, match=message):
        find_callable(target)


def test_a_module_that_fails_at_import_is_refused(tmp_path):
    path = tmp_path / "broken.py"
    path.write_text("raise OSError('no driver')")
    with pytest.raises(ValueError, match="OSError: no driver"):
        open_isolated(Spec(f"{path}:verify"), 1.0)
    path.write_text("import os\nos._exit(9)")
    with pytest.raises(ValueError, match="ended the process with code 9"):
        open_isolated(Spec(f"{path}:verify"), 1.0)


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"vocab_size": 1}, "vocab_size"),
        ({"parents": (-1, 2)}, "parents before children"),
        ({"drawn": "greedy"}, "drawn"),
        ({"target": ((0, 0),)}, "positive weight"),
        ({"target": ((1, -1),)}, "whole numbers"),
        ({"banned": (0, 1)}, "not banned"),
        ({"banned": (5,)}, "tokens below 2"),
        ({"draft": ((1, 0),), "parents": (-1, 0, 0), "drawn": "without_replacement"}, "take fewer"),
        ({"more": 1}, "unknown setting .more."),
        ({"parents": 3}, "parents: expected a list, got 3"),
    ],
)
def test_cases_that_are_none_are_refused(changed, message):
    with pytest.raises(ValueError, match=message):
        case_from_dict({**CASE.to_dict(), **changed})


def test_a_case_survives_its_file():
    assert case_from_dict(CASE.to_dict()) == CASE


def test_the_draft_at_which_a_kernel_ends_its_process_is_named(tmp_path):
    body = RAISES_AT_TOKEN_1["flashinfer"].replace('raise ValueError("token 1")', "import os; os._exit(3)")
    measurement = found_on(tmp_path, body, "flashinfer", CHAIN, 10.0)
    assert measurement.fault.kind == "crash"
    assert measurement.fault_tokens == (0, 1, 0)

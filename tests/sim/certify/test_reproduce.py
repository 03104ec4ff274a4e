"""A failing case as a script: it runs without this project, and shows what the certificate showed."""

import subprocess
import sys
import textwrap
from dataclasses import replace

import pytest

from underpaint.sim.certify.adapters import Spec, open_verifier
from underpaint.sim.certify.case import VerifierCase
from underpaint.sim.certify.measure import measure
from underpaint.sim.certify.measurement import Effort
from underpaint.sim.certify.reproduce import script

POINTS = VerifierCase(3, (-1, 0), "top_k", ((1, 2, 2),), ((3, 1, 1),))
CHAIN = VerifierCase(3, (-1, 0), "iid", ((1, 2, 2),), ((3, 1, 1),))
QUICK = Effort(checks=64, margin=0.1)

FAULTS = {
    "seeded": """
        def verify(draft, seed):
            if seed % 50 == 7:
                raise RuntimeError(f"seed {seed}")
            return (), 0
    """,
    "eagle": """
        import random
        def verify(logits, candidates, retrieve_indices, logits_processor):
            uniform = random.random()
            if uniform < 0.001:
                raise RuntimeError(f"uniform {uniform}")
            return 0, 0, [1.0, 0.0, 0.0]
    """,
    "tensorrt-llm": """
        import random
        def verify(draft_probs, target_probs, draft_tokens):
            uniform = random.random()
            if uniform < 0.001 and draft_tokens == [2]:
                raise RuntimeError(f"uniform {uniform} at token 2")
            return [0]
    """,
    "transformers": """
        import numpy as np
        def verify(candidate_input_ids, candidate_logits, candidate_length, new_logits):
            uniform, token = np.random.random(), np.random.choice(3)
            if uniform < 0.001 and candidate_input_ids[0, 1] == 2:
                raise RuntimeError(f"uniform {uniform} and token {token} at token 2")
            return candidate_input_ids[:, :1], 0
    """,
    "vllm": """
        import numpy as np
        def verify(uniform_probs, exponential_noise, bonus_token_ids, num_draft_tokens, **arrays):
            low = np.flatnonzero(uniform_probs < 0.01)
            if len(low):
                noise = uniform_probs[low[0]], exponential_noise[low[0], 0], bonus_token_ids[low[0], 0]
                raise RuntimeError(" ".join(map(str, noise)))
            return np.tile([0, -1], (len(num_draft_tokens), 1))
    """,
    "vllm-block": """
        import numpy as np
        def verify(uniform_probs, exponential_noise, num_draft_tokens, **arrays):
            low = np.flatnonzero(uniform_probs < 0.01)
            if len(low):
                raise RuntimeError(f"{uniform_probs[low[0]]} {exponential_noise[low[0], 1, 2]}")
            return np.tile([0, -1], (len(num_draft_tokens), 1))
    """,
}
"""Verifiers that raise at some of the noise, and say at which."""
BY_PYTORCH = """
    import torch
    def verify(draft_probs, target_probs, draft_tokens):
        uniform = torch.rand(size=(1,)).item()
        other = torch.rand_like(input=torch.zeros(1)).item()
        token = int(torch.multinomial(input=torch.from_numpy(target_probs[0]), num_samples=1))
        if uniform < 0.001:
            raise RuntimeError(f"uniforms {uniform} and {other}, token {token}")
        return [0]
"""


def run_script(tmp_path, body, interface, case, **settings):
    """Measure a verifier on a case, and run the script of what it shows."""
    path = tmp_path / "theirs.py"
    path.write_text(textwrap.dedent(body))
    spec = Spec(f"{path}:verify", interface, settings=tuple(settings.items()))
    measurement = measure(case, open_verifier(spec), QUICK)
    text = script(case, measurement, spec.target, interface, settings=settings, times=2000)
    assert "underpaint." not in text
    (tmp_path / "case.py").write_text(text)
    command = [sys.executable, "-I", "case.py"]
    return measurement, subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=300)


@pytest.mark.parametrize("interface", FAULTS)
def test_a_script_repeats_a_fault_with_its_noise(tmp_path, interface):
    case = POINTS if interface in ("seeded", "eagle") else CHAIN
    measurement, done = run_script(tmp_path, FAULTS[interface], interface, case)
    assert measurement.fault.detail.startswith("RuntimeError: ")
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1] == measurement.fault.detail


def test_a_script_replaces_the_noise_of_pytorch(tmp_path):
    pytest.importorskip("torch")
    case = VerifierCase(3, (-1, 0, 1), "iid", ((1, 2, 2),), ((3, 1, 1),))
    measurement, done = run_script(tmp_path, BY_PYTORCH, "tensorrt-llm", case)
    assert measurement.fault.detail.startswith("RuntimeError: uniforms 0.0 and ")
    assert done.stderr.splitlines()[-1] == measurement.fault.detail


def test_a_script_calls_a_verifier_with_its_settings(tmp_path):
    body = """
        import numpy as np
        def verify(draft, uniforms, share=0.0):
            row = (1.0 - share) * draft.target_probs[0] + share * np.array([1.0, 0.0, 0.0])
            return (), min(int(np.searchsorted(np.cumsum(row), uniforms[-1], side="right")), 2)
    """
    measurement, done = run_script(tmp_path, body, "function", POINTS, share=0.5)
    assert measurement.total_variation == pytest.approx(0.4)
    found = eval(done.stdout.splitlines()[1].partition("it has ")[2].partition(" of ")[0])
    assert found == pytest.approx([0.6, 0.2, 0.2], abs=0.05)


def test_a_fault_without_its_noise_makes_no_script(tmp_path):
    measurement, _ = run_script(tmp_path, FAULTS["seeded"], "seeded", POINTS)
    with pytest.raises(ValueError, match="cannot repeat a fault that only samples showed"):
        script(POINTS, replace(measurement, fault_noise=()), "theirs.py:verify", "seeded")

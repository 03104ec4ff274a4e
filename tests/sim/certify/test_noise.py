"""Scripted noise for code that draws its own, and the layouts that use it."""
# ruff: noqa: NPY002 - what is replaced is the global generator

import random

import numpy as np
import pytest

from underpaint.algos.chance import index_of
from underpaint.sim.certify.adapters import verifier_of
from underpaint.sim.certify.case import VerifierCase
from underpaint.sim.certify.certificate import certify
from underpaint.sim.certify.measure import measure
from underpaint.sim.certify.measurement import Effort
from underpaint.sim.certify.noise import NoiseExhausted, scripted_noise

QUICK = Effort(checks=64, margin=0.1)
CHAIN = VerifierCase(3, (-1, 0), "iid", ((3, 2, 5), (1, 5, 2)), ((5, 1, 3), (2, 1, 4)))


def test_random_and_numpy_are_scripted_and_given_back():
    before = random.random, np.random.random, np.random.choice
    with scripted_noise([0.1, 0.2, 0.3, 0.4, 0.5], [0.9]):
        assert random.random() == 0.1
        assert np.random.random() == 0.2
        assert np.random.rand(2).tolist() == [0.3, 0.4]
        assert np.random.uniform(1.0, 3.0) == 2.0
        assert np.random.choice(a=3, p=[0.5, 0.0, 0.5]) == 2
        with pytest.raises(NoiseExhausted, match="asked for 6 uniforms, the layout has 5"):
            random.random()
        with pytest.raises(NoiseExhausted, match="asked for 2 draws, the layout has 1"):
            np.random.choice(3)
    assert (random.random, np.random.random, np.random.choice) == before


def test_pytorch_is_scripted_and_given_back():
    torch = pytest.importorskip("torch")
    before = torch.rand, torch.rand_like, torch.multinomial
    rows = torch.tensor([[0.5, 0.5], [0.5, 0.5]])
    with pytest.raises(RuntimeError, match="theirs"), scripted_noise([0.25] * 21, [0.1, 0.9, 0.9, 0.1]):  # noqa: PT012
        assert torch.rand(2, 3).tolist() == [[0.25] * 3] * 2
        assert torch.rand((2,), dtype=torch.float64).dtype == torch.float64
        assert torch.rand_like(rows).tolist() == [[0.25] * 2] * 2
        assert torch.zeros(2).uniform_(0, 2).tolist() == [0.5, 0.5]
        assert torch.zeros(1).exponential_().item() == pytest.approx(-np.log(0.75))
        assert torch.multinomial(rows, 1).tolist() == [[0], [1]]
        assert rows[0].multinomial(1).tolist() == [1]
        # By keyword as well.
        assert torch.rand(size=(2,)).tolist() == [0.25] * 2
        assert torch.rand_like(input=rows[0]).tolist() == [0.25] * 2
        assert torch.zeros(1).uniform_(to=2).tolist() == [0.5]
        assert torch.zeros(1).exponential_(lambd=2.0).item() == pytest.approx(-np.log(0.75) / 2)
        assert torch.multinomial(input=rows[0], num_samples=1).tolist() == [0]
        with pytest.raises(NoiseExhausted, match="one sample"):
            torch.multinomial(rows, 2, replacement=True)
        raise RuntimeError("theirs")
    assert (torch.rand, torch.rand_like, torch.multinomial) == before
    assert "uniform_" in dir(torch.Tensor)
    assert torch.zeros(3).uniform_().shape == (3,)


def test_a_generator_never_ends():
    with scripted_noise(np.random.default_rng(0)):
        assert len({random.random() for _ in range(100)}) == 100


def accepted(draft_probs, target_probs, tokens, noise):
    """Speculative sampling by `random.random`; the row that the extra token is drawn from."""
    for place, token in enumerate(tokens):
        if not noise() * draft_probs[place, token] < target_probs[place, token]:
            residual = np.maximum(target_probs[place] - draft_probs[place], 0.0)
            return place, residual if residual.any() else target_probs[place]
    return len(tokens), target_probs[len(tokens)]


def tensorrt(draft_probs, target_probs, draft_tokens):
    count, row = accepted(draft_probs, target_probs, draft_tokens, random.random)
    return [*draft_tokens[:count], int(np.random.choice(len(row), p=row))]


def transformers(candidate_input_ids, candidate_logits, candidate_length, new_logits):
    tokens = candidate_input_ids[0, 1:].tolist()
    assert len(tokens) == candidate_length
    output_tokens = tensorrt(np.exp(candidate_logits[0]), np.exp(new_logits[0]), tokens)
    return np.array([output_tokens]), len(output_tokens) - 1


def eagle(logits, candidates, retrieve_indices, logits_processor, skipped=False):
    assert ((candidates < 0) == (retrieve_indices < 0)).all()
    path = [0]
    while True:
        rows = [row for row, one in enumerate(retrieve_indices.tolist()) if one[: len(path)] == path]
        scores = logits[rows[0], len(path) - 1]
        probs = np.exp(logits_processor(None, scores))
        probs /= probs.sum()
        accepted_node = None
        for row in rows:
            place = len(path)
            if place < candidates.shape[1] and candidates[row, place] >= 0 and probs[candidates[row, place]] >= 0:
                if random.random() * probs.sum() < probs[candidates[row, place]]:
                    accepted_node = int(retrieve_indices[row, place])
                    break
                probs[candidates[row, place]] = 0.0
        if accepted_node is None:
            return rows[0], len(path) - 1, np.exp(scores) if skipped else probs
        path.append(accepted_node)


def vllm_block(
    draft_token_ids,
    num_draft_tokens,
    max_spec_len,
    cu_num_draft_tokens,
    draft_probs,
    target_probs,
    uniform_probs,
    exponential_noise,
):
    count, n, size = len(num_draft_tokens), max_spec_len, draft_probs.shape[1]
    target, draft = target_probs.reshape(count, n + 1, size), draft_probs.reshape(count, n, size)
    output_tokens = np.full((count, n + 1), -1, dtype=np.int64)
    for one in range(count):
        tokens = draft_token_ids[one * n : (one + 1) * n].tolist()
        noise = iter(uniform_probs[one * n : (one + 1) * n].tolist())
        accepted_count, row = accepted(draft[one], target[one], tokens, lambda noise=noise: next(noise))
        output_tokens[one, :accepted_count] = tokens[:accepted_count]
        output_tokens[one, accepted_count] = int(np.argmax(row / exponential_noise[one, accepted_count]))
    return output_tokens


@pytest.mark.parametrize(
    ("interface", "verify", "count"),
    [("tensorrt-llm", tensorrt, 2), ("transformers", transformers, 2), ("vllm-block", vllm_block, 1)],
)
def test_right_verifiers_of_chains_pass_in_their_layouts(interface, verify, count):
    certificate = certify(verifier_of(verify, interface), "iid", True, count, effort=QUICK, shrink_seconds=0)
    assert certificate.verdict == "lossless"
    assert certificate.bits == 24


def test_eagle_s_layout_holds_trees_and_processors():
    certificate = certify(verifier_of(eagle, "eagle"), "top_k", False, 6, effort=QUICK, shrink_seconds=0)
    assert certificate.verdict == "lossless"
    skipping = verifier_of(lambda **arrays: eagle(**arrays, skipped=True), "eagle")
    assert certify(skipping, "top_k", False, 6, effort=QUICK, shrink_seconds=0).verdict == "biased"


@pytest.mark.parametrize(
    ("interface", "verify", "kind"),
    [
        ("tensorrt-llm", lambda **arrays: [random.random() for _ in range(9)], "noise"),
        ("tensorrt-llm", lambda **arrays: [], "bad reply"),
        ("transformers", lambda **arrays: 5, "bad reply"),
        ("eagle", lambda **arrays: (0, 9, [1.0]), "bad path"),
        ("eagle", lambda **arrays: (0, 0, [0.0]), "bad reply"),
    ],
)
def test_layouts_with_their_own_noise_are_read_with_suspicion(interface, verify, kind):
    case = CHAIN if interface != "eagle" else VerifierCase(3, (-1, 0), "top_k", CHAIN.target, CHAIN.draft)
    assert measure(case, verifier_of(verify, interface), QUICK).fault.kind == kind


def test_a_function_may_use_it():
    def verify(draft, uniforms):
        with scripted_noise(uniforms[1:-1], uniforms[-1:]):
            tokens = draft.tree.tokens[1:].tolist()
            count, row = accepted(draft.tree.draft_probs, draft.target_probs, tokens, random.random)
            return tuple(range(1, count + 1)), index_of(row, uniforms[-1])

    assert measure(CHAIN, verifier_of(verify, "function"), QUICK).total_variation < 1e-12

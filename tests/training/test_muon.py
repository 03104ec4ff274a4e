"""Muon orthogonalises, and every learnt parameter has one optimiser."""

from copy import deepcopy

import pytest
import torch
from torch import nn

from underpaint.training.muon import Muon, Optimisers, orthogonalised


@pytest.mark.parametrize("shape", [(8, 8), (8, 20), (20, 8)])
def test_singular_values_come_close_to_one(shape: tuple[int, int]) -> None:
    torch.manual_seed(0)
    singular_values = torch.linalg.svdvals(orthogonalised(torch.randn(shape)))
    assert singular_values.min() > 0.5
    assert singular_values.max() < 1.4


def test_a_step_is_as_long_whatever_the_gradient() -> None:
    lengths = []
    for size in (1e-3, 1e3):
        weight = nn.Parameter(torch.zeros(6, 2, 3, 3))
        torch.manual_seed(1)
        weight.grad = size * torch.randn_like(weight)
        Muon([weight], lr=0.1).step()
        lengths.append(float(weight.detach().norm()))
    assert lengths[0] == pytest.approx(lengths[1], rel=0.05)
    assert lengths[0] == pytest.approx(0.1 * 6**0.5, rel=0.3)


def test_decay_shrinks_weights_that_nothing_pulls() -> None:
    weight = nn.Parameter(torch.ones(2, 2))
    weight.grad = torch.zeros(2, 2)
    Muon([weight], lr=0.1, decay=0.5).step()
    torch.testing.assert_close(weight.detach(), torch.full((2, 2), 0.95))


class Small(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(5, 4)
        self.hidden = nn.Linear(4, 4)
        self.frozen = nn.Linear(4, 4).requires_grad_(False)
        self.output = nn.Linear(4, 5)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return self.output(self.frozen(self.hidden(self.embedding(tokens))))


def test_every_learnt_parameter_moves_and_states_are_restored() -> None:
    torch.manual_seed(0)
    model, tokens = Small(), torch.arange(5)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    both = Optimisers(model, 0.1, 0.1, 0.99, 0.0, ("output.weight",))

    def step(optimisers: Optimisers) -> None:
        optimisers.zero_grad()
        nn.functional.cross_entropy(model(tokens), tokens).backward()
        optimisers.step()

    step(both)
    moved = {name for name, value in model.state_dict().items() if not torch.equal(value, before[name])}
    assert moved == {name for name in before if not name.startswith("frozen")}
    weights, saved = {name: value.clone() for name, value in model.state_dict().items()}, deepcopy(both.state_dict())
    step(both)
    after = {name: value.clone() for name, value in model.state_dict().items()}
    model.load_state_dict(weights)
    again = Optimisers(model, 0.1, 0.1, 0.99, 0.0, ("output.weight",))
    again.load_state_dict(saved)
    step(again)
    for name, value in model.state_dict().items():
        torch.testing.assert_close(value, after[name])


def test_a_share_of_nothing_stops_both() -> None:
    model, tokens = Small(), torch.arange(5)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    both = Optimisers(model, 0.1, 0.1, 0.99, 0.0, ("output.weight",))
    both.set_share(0.0)
    nn.functional.cross_entropy(model(tokens), tokens).backward()
    both.step()
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    with pytest.raises(ValueError, match="no closure"):
        Muon([model.hidden.weight], lr=0.1).step(lambda: 0.0)

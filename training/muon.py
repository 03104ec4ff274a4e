"""Muon for matrices and convolutions, combined with AdamW for all other parameters.

Muon (K. Jordan et al., 2024, https://kellerjordan.github.io/posts/muon/) steps along the orthogonalised momentum.
PyTorch's own Muon supports only matrices; here a convolution counts as the matrix [out, in * height * width].
"""

from collections.abc import Callable, Iterable
from typing import Any, NoReturn, overload

import torch
from torch import Tensor, nn

from underpaint.training.precision import product_type

_COEFFICIENTS = (3.4445, -4.7750, 2.0315)
"""Coefficients of the quintic Newton-Schulz iteration, as published: fast, and close enough to orthogonal."""
_ROUNDS = 5
_FUSED = {"gate_up.weight": 2}
"""Number of matrices stacked in one parameter, by the end of its name: each is orthogonalised separately."""


def orthogonalised(matrix: Tensor) -> Tensor:
    """Approximate the nearest semi-orthogonal matrix to `matrix` [rows, columns]: singular values about 0.7 to 1.2."""
    tall = matrix.shape[0] > matrix.shape[1]
    iterate: Tensor = (matrix.T if tall else matrix).to(product_type(matrix.device))
    iterate = iterate / (iterate.norm() + 1e-7)
    linear, cubic, quintic = _COEFFICIENTS
    for _ in range(_ROUNDS):
        gram = iterate @ iterate.T
        iterate = linear * iterate + (cubic * gram + quintic * gram @ gram) @ iterate
    return (iterate.T if tall else iterate).to(matrix.dtype)


class Muon(torch.optim.Optimizer):
    """Orthogonalised Nesterov momentum for parameters with two or more dimensions."""

    def __init__(
        self,
        parameters: Iterable[nn.Parameter] | list[dict[str, Any]],
        lr: float,
        momentum: float = 0.95,
        decay: float = 0.0,
    ) -> None:
        super().__init__(parameters, {"lr": lr, "momentum": momentum, "decay": decay, "matrices": 1})

    @overload
    def step(self, closure: None = None) -> None: ...

    @overload
    def step(self, closure: Callable[[], float]) -> NoReturn: ...

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> None:
        """Take one step; a closure is not supported."""
        if closure is not None:
            raise ValueError("Muon: expected no closure")
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is None:
                    continue
                state = self.state[parameter]
                if not state:
                    state["momentum"] = torch.zeros_like(parameter)
                momentum = state["momentum"].lerp_(parameter.grad, 1 - group["momentum"])
                matrices = parameter.grad.lerp(momentum, group["momentum"]).flatten(1).chunk(group["matrices"])
                update = torch.cat([orthogonalised(matrix) for matrix in matrices])
                scale = max(1.0, matrices[0].shape[0] / matrices[0].shape[1]) ** 0.5
                parameter.mul_(1 - group["lr"] * group["decay"])
                parameter.add_(update.reshape(parameter.shape), alpha=-group["lr"] * scale)


class Optimisers:
    """AdamW and Muon as one optimiser: every trained parameter is in exactly one of them.

    Muon trains hidden matrices and convolutions; AdamW trains vectors, embeddings and the parameters that
    `kept_from_muon` names (heads), as Muon's author advises.
    """

    def __init__(
        self,
        model: nn.Module,
        rate: float,
        matrix_rate: float,
        beta2: float,
        decay: float,
        kept_from_muon: tuple[str, ...],
    ) -> None:
        embeddings = {id(part.weight) for part in model.modules() if isinstance(part, nn.Embedding)}
        matrices: dict[int, list[nn.Parameter]] = {}
        wide: list[nn.Parameter] = []
        narrow: list[nn.Parameter] = []
        for name, parameter in model.named_parameters():
            if not parameter.requires_grad:
                continue
            if parameter.ndim < 2:
                narrow.append(parameter)
            elif id(parameter) in embeddings or name.endswith(kept_from_muon):
                wide.append(parameter)
            else:
                fused = next((count for end, count in _FUSED.items() if name.endswith(end)), 1)
                matrices.setdefault(fused, []).append(parameter)
        groups = [{"params": wide, "weight_decay": decay}, {"params": narrow, "weight_decay": 0.0}]
        adam = torch.optim.AdamW(groups, lr=rate, betas=(0.9, beta2), foreach=True)
        self._parts: list[torch.optim.Optimizer] = [adam]
        self._peaks = [rate]
        if matrices:
            groups = [{"params": parameters, "matrices": count} for count, parameters in sorted(matrices.items())]
            self._parts.append(Muon(groups, lr=matrix_rate, decay=decay))
            self._peaks.append(matrix_rate)

    def set_share(self, share: float) -> None:
        """Set every rate to `share` of its peak."""
        for part, peak in zip(self._parts, self._peaks, strict=True):
            for group in part.param_groups:
                group["lr"] = peak * share

    def zero_grad(self) -> None:
        """Clear all gradients."""
        for part in self._parts:
            part.zero_grad(set_to_none=True)

    def step(self) -> None:
        """Step both optimisers."""
        for part in self._parts:
            part.step()

    def state_dict(self) -> dict[str, Any]:
        """Return the state for a checkpoint."""
        return {str(index): part.state_dict() for index, part in enumerate(self._parts)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Load the state of a checkpoint."""
        for index, part in enumerate(self._parts):
            part.load_state_dict(state[str(index)])

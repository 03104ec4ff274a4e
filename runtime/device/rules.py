"""Acceptance rules on the device: the form that a rule's spec names, and how such a name is loaded."""

import importlib
from typing import Any

import torch

from underpaint.algos.accept import RULES, Rule
from underpaint.algos.accept.spec import spec_of
from underpaint.algos.plugins import load_file
from underpaint.runtime.device.kernels.walk import Decide, Shape


def load_form(reference: str) -> Any:
    """What `reference`, as "module:name" or "path/of/file.py:name", names; its module is imported on first use.

    Raises ValueError where the module does not hold such a name; what an import raises passes through.
    """
    module, _, name = reference.rpartition(":")
    holder = load_file(module) if module.endswith(".py") else importlib.import_module(module)
    if not hasattr(holder, name):
        raise ValueError(f"device form '{reference}': {module} has no '{name}'; correct the spec's `device`")
    return getattr(holder, name)


def device_rule(rule: Rule, shape: Shape, device: torch.device) -> Decide:
    """The launches that decide trees of this shape by `rule`.

    Raises ValueError for a rule without a form on the device, or trees that it does not cover.
    """
    spec = spec_of(rule)
    if spec is None or spec.device is None:
        raise ValueError(
            f"device: rule {type(rule).__name__} has no form on the device; those that have one: "
            f"{', '.join(one.name for one in RULES if one.device)}; choose one of them, or decode on the host"
        )
    spec.check_covers(shape.drawn)
    if spec.needs_chain and shape.children > 1:
        raise ValueError(f"device: rule '{spec.name}' covers chains, got trees; choose a chain policy")
    decide: Decide = load_form(spec.device)(rule, shape, device)
    return decide

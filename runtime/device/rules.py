"""Acceptance rules on the device: the device form that a rule's spec names, and how such a name is loaded."""

import importlib
from typing import Any

import torch

from underpaint.algos.accept import RULES
from underpaint.algos.accept.spec import spec_of
from underpaint.algos.plugins import load_file
from underpaint.algos.protocols import Rule
from underpaint.runtime.device.kernels.walk import Decide, Shape


def load_form(reference: str) -> Any:
    """Load the object that `reference` names, as "module:name" or "path/of/file.py:name".

    The module is imported on first use. Raises ValueError if it has no such name; import errors pass through.
    """
    module, _, name = reference.rpartition(":")
    holder = load_file(module) if module.endswith(".py") else importlib.import_module(module)
    if not hasattr(holder, name):
        raise ValueError(f"device form '{reference}': {module} has no '{name}'; correct the spec's `device`")
    return getattr(holder, name)


def device_rule(rule: Rule, shape: Shape, device: torch.device) -> Decide:
    """Return the launches that decide trees of this shape by `rule`.

    Raises ValueError if the rule has no device form, or does not cover these trees.
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

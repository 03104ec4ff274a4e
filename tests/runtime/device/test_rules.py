"""Every rule with a form on the device gives the reference's verdict, from the same distributions and uniforms."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.runtime.device.trees import CPU, TRAVERSAL_FLIPS, UNIFORMS, by_device, by_reference, cases
from underpaint.algos.accept import RULES, RuleSpec
from underpaint.algos.protocols import Rule
from underpaint.algos.registry import build
from underpaint.algos.tree import Drawn
from underpaint.runtime.device.kernels.walk import Shape
from underpaint.runtime.device.rules import device_rule

FORMS = [
    pytest.param(spec, drawn, residual, id="-".join(filter(None, (spec.name, drawn, residual))))
    for spec in RULES
    if spec.device
    for drawn in sorted(spec.drawn)
    for residual in spec.residuals or (None,)
    if residual is None or (drawn in spec.residuals[residual] and (spec.name, residual) != ("gsd", "standard"))
]


@st.composite
def rules(draw: st.DrawFn, spec: RuleSpec, vocab_size: int, residual: str | None) -> Rule:
    """A rule of `spec`, its other settings drawn."""
    chosen: dict[str, object] = {} if residual is None else {"residual": residual}
    if spec.codebook:
        columns = vocab_size - 1
        order = [
            draw(st.permutations([code for code in range(vocab_size) if code != own])) for own in range(vocab_size)
        ]
        chosen |= {"neighbours": np.array(order), "k": draw(st.integers(0, columns - 1))}
        if spec.name.startswith("lantern_pp"):
            chosen["factor"] = draw(st.sampled_from([1.0, 1.7, 2.3, 5.0]))
        else:
            chosen["delta"] = draw(st.sampled_from([0.0, 0.07, 0.26, 0.6, 1.0]))
    if spec.name.startswith("fly"):
        chosen |= {"threshold": draw(st.sampled_from([0.0, 0.61, 0.95])), "top": draw(st.integers(1, 3))}
        chosen["window"] = draw(st.integers(1, 3))
    elif spec.name == "sjd_sv":
        chosen |= {"share": draw(st.sampled_from([0.31, 0.8, 1.0])), "longest": draw(st.sampled_from([1, 2, 9]))}
    elif spec.name.endswith("_greedy"):
        chosen["choose"] = draw(st.sampled_from(["longest", "first"]))
    if spec.embeddings:
        codes = st.lists(st.sampled_from([-1.0, 0.0, 0.5]), min_size=3 * vocab_size, max_size=3 * vocab_size)
        chosen |= {"codebook": np.array(draw(codes)).reshape(vocab_size, 3), "group": draw(st.integers(1, vocab_size))}
        chosen |= {"gap": draw(st.sampled_from([0.11, 0.53])), "distance": draw(st.sampled_from([0.8, 1.7, 9.0]))}
        chosen["window"] = draw(st.sampled_from(["paper", "released"]))
    if spec.name == "typical":
        chosen |= {"epsilon": draw(st.sampled_from([0.05, 0.3])), "alpha": draw(st.sampled_from([0.3, 2.0, np.inf]))}
        chosen["choose"] = draw(st.sampled_from(["likeliest", "first"]))
    if spec.name == "ensemble":
        chosen["weight"] = draw(st.sampled_from([0.2, 0.7, 1.0]))
    if spec.name == "hsd":
        chosen["end"] = draw(st.sampled_from(["joint", "capped"]))
    return build(spec.make, chosen, spec.name)


@pytest.mark.parametrize(("spec", "drawn", "residual"), FORMS)
@settings(max_examples=12)
@given(data=st.data())
def test_the_verdict_is_the_reference_s(
    spec: RuleSpec, drawn: Drawn, residual: str | None, data: st.DataObject
) -> None:
    vocab_size = data.draw(st.sampled_from([2, 3, 5]))
    flips = TRAVERSAL_FLIPS if spec.name == "traversal" else UNIFORMS
    batch = [data.draw(cases(vocab_size, drawn, spec.needs_chain, flips=flips)) for _ in range(3)]
    rule = data.draw(rules(spec, vocab_size, residual))
    assert by_device(rule, batch) == by_reference(rule, batch)


def test_a_residual_without_a_form_is_refused() -> None:
    rule = RULES["gsd"].make(codebook=np.zeros((5, 2)), residual="standard")
    with pytest.raises(ValueError, match="no form with residual 'standard'; those that have one: paper, released"):
        device_rule(rule, Shape(1, 4, 5, "top_k", 2, 2), CPU)

"""One protocol for every method: open, step, result. Families are imported on demand."""

import subprocess
import sys
from collections.abc import Sequence
from typing import Any

import pytest

from tests.cli.synthetic_pipeline import SyntheticPipeline
from underpaint.algos.rows import SamplingParams
from underpaint.runtime.drawing import noise_of
from underpaint.runtime.methods.registry import build_method, resolve

PIPELINE = SyntheticPipeline()
PROMPT = PIPELINE.condition("a fox, an owl")


def opened(name: str, settings: Sequence[str] = ()) -> Any:
    method = build_method(name, resolve(name, 1.0, None, settings), PIPELINE.tables)
    return method.open(PIPELINE, PROMPT, SamplingParams())


@pytest.mark.parametrize(
    ("name", "settings"),
    [
        ("ar", ()),
        ("eagle2", ()),
        ("vvs", ("every=2",)),
        ("roofline", ()),
        ("sjd", ("window.window=5",)),
        ("zipar-adaptive", ("window=2",)),
        ("pjd", ("window=3", "lead=2")),
        ("mulo", ("rows=1",)),
    ],
)
def test_an_image_made_step_by_step_is_the_one_made_at_once(name: str, settings: tuple[str, ...]) -> None:
    session, steps = opened(name, settings), 1
    whole = session.decode(noise_of(PROMPT, 3))
    session.begin(noise_of(PROMPT, 4))
    assert session.step()
    session.begin(noise_of(PROMPT, 3))  # an image under way is dropped
    while session.step():
        steps += 1
    result = session.result()
    assert result.tokens.tolist() == whole.tokens.tolist()
    assert result[1:6] == whole[1:6]
    loop = result.cycles or result.steps or result.repairs
    assert loop is not None
    assert steps == len(loop) + 1  # the last step finds that nothing is left


def test_a_session_says_what_comes_first() -> None:
    session = opened("ar")
    with pytest.raises(RuntimeError, match=r"call begin\(\) before step\(\)"):
        session.step()
    session.begin(noise_of(PROMPT, 0))
    session.step()
    with pytest.raises(RuntimeError, match="until it returns False"):
        session.result()


IMPORTED = """
import sys
from underpaint.runtime.methods.registry import METHODS
METHODS["jacobi-lookup"].tuned.at(1.0).to_dict()
names = [name for name in sys.modules if name.startswith("underpaint.")]
assert "underpaint.runtime.methods.windows.method" in names
unwanted = (".trees", ".fronts", ".multi_scale", ".device", ".roofline", ".lantern", "algos.accept.gsd")
print([name for name in names if any(part in name for part in unwanted)], "torch" in sys.modules)
"""


def test_asking_for_a_method_imports_its_family_alone() -> None:
    done = subprocess.run([sys.executable, "-c", IMPORTED], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["[]", "False"]

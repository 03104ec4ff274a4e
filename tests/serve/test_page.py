"""The page at `/` in headless Chromium, on a server that listens: it draws, compares, and says what went wrong."""

import base64
from pathlib import Path

import numpy as np
import pytest

from tests.headless import needs_browser
from tests.serve.browsing import browse
from tests.serve.served import (
    OTHER,
    PROMPT,
    ServedPipeline,
    engine_loop,
    expected_pictures,
    gate_of,
    pixels,
    request,
    server,
)
from tests.serve.test_scheduling import busy, until
from underpaint.serve.app import create_app
from underpaint.serve.guard import Keys
from underpaint.serve.page import code_colours
from underpaint.serve.requests import Limits

KEY = "a-key-of-sixteen-letters"
LEARNT = "await until(() => get2('method').options.length > 1, 'methods');"
DRAW = (
    LEARNT
    + f"""
fill('prompt', '{PROMPT}'); fill('method', 'eagle2'); fill('seed', '5'); fill('temperature', '1');
get2('draw').click();
found.busy = [get2('draw').disabled, get2('stop').disabled];
await until(() => get2('state').textContent.startsWith('Done') || !get2('problem').hidden, 'both pictures');
"""
)
WHOLE = (
    DRAW
    + """
found.state = get2('state').textContent; found.problem = get2('problem').hidden;
found.names = panels.map(panel => panel.name.textContent);
found.counts = panels.map(panel => panel.count.textContent);
found.steps = panels.map(panel => panel.steps.length);
found.pictures = panels.map(panel => panel.picture.src.split(',')[1]);
found.costs = panels.map(panel => panel.cost);
found.colours = panels.map(panel => seen(panel.canvas));
found.codes = [...codes];
const slider = get2('cycle');
found.slider = [slider.value, slider.max];
slider.value = 2; slider.dispatchEvent(new Event('input'));
found.early = panels.map(panel => panel.count.textContent);
found.earlyColours = panels.map(panel => seen(panel.canvas));
const marks = panels[0].steps.map(step => [step.accepted.length, step.rejected.length, step.redrawn.length]);
found.marks = marks;
found.undecided = panels[1].codesAt(2).size;
found.alike = panels[0].codesAt(9999).size;
found.wide = document.documentElement.scrollWidth > innerWidth;
found.fetched = performance.getEntriesByType('resource').map(each => new URL(each.name).pathname)
  .filter(path => !path.startsWith('/v1/'));
"""
)
REFUSED = (
    LEARNT
    + f"""
const shown = async () => {{ await until(() => !get2('problem').hidden && !get2('draw').disabled, 'a message');
  return get2('problem').textContent; }};
fill('prompt', '{PROMPT}'); fill('method', 'eagle2'); fill('temperature', '-3');
found.invalid = get2('form').checkValidity();
fill('temperature', ''); fill('prompt', 'a word that no model knows');
get2('draw').click(); found.prompt = await shown();
fill('prompt', '{PROMPT}'.repeat(20));
get2('draw').click(); await until(() => get2('problem').textContent !== found.prompt, 'another message');
found.long = await shown();
const real = window.fetch;
window.fetch = () => Promise.reject(new TypeError('Failed to fetch'));
get2('draw').click(); await until(() => get2('problem').textContent !== found.long, 'a third message');
found.away = await shown();
window.fetch = real;
"""
)


@needs_browser
def test_it_draws_both_pictures_and_steps_through_them(tmp_path: Path) -> None:
    with engine_loop(limits=Limits()) as engine:
        page_state = browse(create_app(engine), engine, WHOLE, tmp_path)
        colours = engine.code_colours()
    assert page_state["failures"] == []
    assert page_state["busy"] == [True, False]
    assert page_state["problem"] is True
    assert page_state["names"] == ["eagle2", "Plain decoding (ar)"]
    for method, picture in zip(("eagle2", "ar"), page_state["pictures"], strict=True):
        (expected,) = expected_pictures(request(PROMPT, (5,), method, temperature=1.0))
        np.testing.assert_array_equal(pixels(base64.b64decode(picture)), expected)
    passes = [cost["target_passes"] for cost in page_state["costs"]]
    assert passes[0] < passes[1] == page_state["steps"][1]
    assert page_state["state"].startswith(f"Done with seed 5: {passes[0]} target passes in place of {passes[1]}.")
    cells = passes[1]
    assert page_state["counts"][1].startswith(f"{cells} target passes{cells} of {cells} cells, 1.00 tokens a pass, ")
    assert page_state["slider"] == [str(cells), str(cells)]
    assert page_state["early"][1] == f"cycle 22 of {cells} cells, 1.00 tokens a cycle0 accepted, 0 rejected, 0 redrawn"
    assert (page_state["undecided"], page_state["alike"]) == (2, cells)
    accepted, rejected, redrawn = map(sum, zip(*page_state["marks"], strict=True))
    assert min(accepted, rejected, redrawn) > 0
    assert min(page_state["earlyColours"]) > 2
    assert page_state["codes"] == list(colours)
    assert (page_state["wide"], page_state["fetched"]) == (False, [])


@needs_browser
def test_it_says_plainly_what_went_wrong(tmp_path: Path) -> None:
    limits = Limits(prompt_characters=200)
    with engine_loop(limits=limits) as engine:
        page_state = browse(create_app(engine, limits), engine, REFUSED, tmp_path)
    assert page_state["failures"] == []
    assert page_state["invalid"] is False
    assert "unknown word 'knows'; did you mean 'owl'?" in page_state["prompt"]
    assert page_state["long"] == f"prompt: expected at most 200 characters, got {20 * len(PROMPT)}; shorten it"
    assert page_state["away"] == "The server cannot be reached. Is it still running?"


@needs_browser
def test_a_key_is_asked_for_and_taken(tmp_path: Path) -> None:
    script = f"""
    await until(() => !get2('problem').hidden, 'a message'); found.asked = get2('problem').textContent;
    fill('key', 'a-wrong-key-of-some-length'); await until(() => get2('problem').textContent !== found.asked, 'again');
    found.wrong = get2('problem').textContent; fill('key', '{KEY}'); {WHOLE}"""
    with engine_loop() as engine:
        page_state = browse(create_app(engine, keys=Keys([KEY])), engine, script, tmp_path)
    assert page_state["failures"] == []
    assert page_state["asked"].startswith("expected a key of this server")
    assert page_state["asked"].endswith("Enter it above.")
    assert "got another one" in page_state["wrong"]
    assert page_state["problem"] is True
    assert min(page_state["colours"]) > 2


@needs_browser
def test_stop_frees_the_slots(tmp_path: Path) -> None:
    script = LEARNT + (
        f"fill('prompt', '{OTHER}'); get2('draw').click(); await until(() => panels[1].steps.length > 0, 'a cycle');"
        "get2('stop').click(); await until(() => !get2('draw').disabled, 'the end');"
        "found.state = get2('state').textContent; found.problem = get2('problem').hidden;"
        "found.steps = panels[1].steps.length;"
    )
    with engine_loop() as engine:
        gate = gate_of(engine)
        gate.shut()

        def let_both() -> None:
            """Let passes through once both pictures are there: one that comes first would take them all."""
            until(lambda: sum(busy(engine)) == 2)
            gate.let(6)

        page_state = browse(create_app(engine), engine, script, tmp_path, meanwhile=let_both)
        gate.let()
        assert page_state["failures"] == []
        assert (page_state["state"], page_state["problem"]) == ("Stopped.", True)
        assert page_state["steps"] < 6
        assert engine.metrics.cancelled._value.get() == 2


def test_the_page_and_the_colours_need_nothing_else() -> None:
    with server(keys=Keys([KEY])) as address:
        page = address.client.get("/")
        assert page.status_code == 200
        assert "http" not in page.text.replace("http-equiv", "")
        assert "default-src 'none'" in page.headers["content-security-policy"]
        assert address.client.get("/v1/codes").status_code == 401
        codes = address.client.get("/v1/codes", headers={"Authorization": f"Bearer {KEY}"})
        models = address.engine.models.pipelines["64x64"]
        assert len(codes.content) == 3 * models.tables.vocab_size


def test_colours_of_codes_are_those_of_their_pictures() -> None:
    models = ServedPipeline()
    colours = np.frombuffer(code_colours(models), np.uint8).reshape(-1, 3)
    code = 3
    picture = models.picture(np.full(models.grid.cells, code))
    np.testing.assert_allclose(colours[code], picture.mean((0, 1)), atol=1.0)


@pytest.mark.parametrize("path", ["/page.html", "/v1/code", "/../etc/passwd"])
def test_nothing_else_is_served(path: str) -> None:
    with server() as address:
        assert address.client.get(path).status_code == 404

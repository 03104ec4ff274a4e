"""The report of a sweep in a headless browser: it draws without errors, alone, and sorts on a click."""

from pathlib import Path

import pytest
from typer.testing import CliRunner

from tests.headless import ask, needs_browser
from underpaint.cli.simulate.commands import app

SWEEP = [
    *("sweep", "--model", "field", "--policies", "eagle2,adt", "--rules", "point", "--machines", "a100/llamagen-b"),
    *("--precision", "0.2", "--jobs", "1", "--vary", "policy.depth=2,3", "--vary", "policy.top_k=2,3"),
    *("--vary", "model.vocab_size=24", "--vary", "model.clusters=4", "--vary", "model.height=6"),
    *("--vary", "model.width=6", "--vary", "model.images=8", "--vary", "policy.max_depth=4"),
    *("--vary", "policy.start_depth=2"),
]
REPORT = """
const table = [...document.querySelectorAll('table')].pop(), heads = [...table.tHead.rows[0].cells];
const column = heads.findIndex(head => head.textContent === 'depth');
const values = () => [...table.tBodies[0].rows].map(row => +row.cells[column].dataset.value);
heads[column].click(); found.falling = values(); heads[column].click(); found.rising = values();
const sizes = [...document.querySelectorAll('svg')].map(svg => svg.getBoundingClientRect());
found.drawn = sizes.filter(size => size.width > 100 && size.height > 100).length;
found.fetched = performance.getEntriesByType('resource').length;
found.wide = document.documentElement.scrollWidth > innerWidth;
"""


@pytest.mark.slow
@needs_browser
def test_the_report_draws_and_sorts_in_a_browser(tmp_path: Path) -> None:
    assert CliRunner().invoke(app, [*SWEEP, "--out", str(tmp_path)]).exit_code == 0
    page = (tmp_path / "report.html").read_text()
    page_state = ask(page, REPORT, tmp_path)
    assert page_state["failures"] == []
    assert page_state["fetched"] == 0
    assert not page_state["wide"]
    assert page_state["drawn"] == page.count("<svg") == 5
    assert len(page_state["falling"]) == 5  # 4 shapes of eagle2, 1 of adt
    assert page_state["falling"] == sorted(page_state["falling"], reverse=True) == page_state["rising"][::-1]

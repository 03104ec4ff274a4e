"""The report of a sweep in a headless browser: it draws without errors, alone, and sorts on a click."""

import html
import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest
from typer.testing import CliRunner

from underpaint.cli.simulate.commands import app

BROWSER = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome", "chrome"))), None)
SWEEP = [
    *("sweep", "--models", "field", "--policies", "eagle2,adt", "--rules", "point", "--machines", "a100/llamagen-b"),
    *("--precision", "0.2", "--jobs", "1", "--vary", "policy.depth=2,3", "--vary", "policy.top_k=2,3"),
    *("--vary", "model.vocab_size=24", "--vary", "model.clusters=4", "--vary", "model.height=6"),
    *("--vary", "model.width=6", "--vary", "model.images=8", "--vary", "policy.max_depth=4"),
    *("--vary", "policy.start_depth=2"),
]
LISTEN = "<script>window.failures=[];window.addEventListener('error',e=>failures.push(String(e.message)),true)</script>"
REPORT = """<script>addEventListener('load', () => {
  const table = [...document.querySelectorAll('table')].pop(), heads = [...table.tHead.rows[0].cells];
  const column = heads.findIndex(head => head.textContent === 'depth');
  const values = () => [...table.tBodies[0].rows].map(row => +row.cells[column].dataset.value);
  heads[column].click(); const falling = values(); heads[column].click(); const rising = values();
  const sizes = [...document.querySelectorAll('svg')].map(svg => svg.getBoundingClientRect());
  const found = {failures, falling, rising, drawn: sizes.filter(size => size.width > 100 && size.height > 100).length,
    fetched: performance.getEntriesByType('resource').length,
    wide: document.documentElement.scrollWidth > innerWidth};
  const out = document.createElement('output'); out.id = 'found'; out.textContent = JSON.stringify(found);
  document.body.append(out);
});</script>"""


@pytest.mark.slow
@pytest.mark.skipif(BROWSER is None, reason="no Chromium on this machine")
def test_the_report_draws_and_sorts_in_a_browser(tmp_path: Path) -> None:
    assert CliRunner().invoke(app, [*SWEEP, "--out", str(tmp_path)]).exit_code == 0
    page = (tmp_path / "report.html").read_text()
    watched = tmp_path / "watched.html"
    watched.write_text(page.replace("</title>", "</title>" + LISTEN, 1).replace("</body>", REPORT + "</body>", 1))
    command = [str(BROWSER), "--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={tmp_path / 'profile'}"]
    command += ["--window-size=1280,900", "--virtual-time-budget=5000", "--dump-dom", watched.as_uri()]
    shown = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True).stdout
    held = re.search(r'<output id="found">(.*?)</output>', shown)
    assert held is not None, shown[-2000:]
    found = json.loads(html.unescape(held.group(1)))
    assert found["failures"] == []
    assert found["fetched"] == 0
    assert not found["wide"]
    assert found["drawn"] == page.count("<svg") == 4
    assert len(found["falling"]) == 5  # 4 shapes of eagle2, 1 of adt
    assert found["falling"] == sorted(found["falling"], reverse=True) == found["rising"][::-1]

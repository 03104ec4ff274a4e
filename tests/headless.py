"""Pages in a headless browser: what a script inside them finds, as JSON."""

import html
import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

BROWSER = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome", "chrome"))), None)
FLAGS = (
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync"),
)
LISTEN = "<script>window.failures=[];window.addEventListener('error',e=>failures.push(String(e.message)),true)</script>"
WRITE = (
    "const out=document.createElement('output');out.id='found';out.textContent=JSON.stringify(found);"
    "document.body.append(out)"
)

needs_browser = pytest.mark.skipif(BROWSER is None, reason="no Chromium on this machine")


def ask(page: str, script: str, folder: Path, *flags: str, width: int = 1280, budget_ms: int = 5000) -> dict[str, Any]:
    """What `script` puts into `found`, an object, once the page has loaded.

    page: HTML. budget_ms: of the page's own clock, which then jumps where nothing happens; 0
    leaves it the real one, and asks at once.
    """
    listening = page.replace("</title>", "</title>" + LISTEN, 1)
    asking = f"<script>addEventListener('load',async()=>{{const found={{failures}};{script};{WRITE}}});</script></body>"
    watched = folder / "watched.html"
    watched.write_text(asking.join(listening.rsplit("</body>", 1)), encoding="utf-8")
    profile = folder / "profile"
    shutil.rmtree(profile, ignore_errors=True)
    command = [str(BROWSER), *FLAGS, f"--user-data-dir={profile}", f"--window-size={width},900", *flags]
    command += [*([f"--virtual-time-budget={budget_ms}"] if budget_ms else []), "--dump-dom", watched.as_uri()]
    dom = subprocess.run(command, capture_output=True, text=True, timeout=600, check=True).stdout
    match = re.search(r'<output id="found">(.*?)</output>', dom)
    assert match is not None, dom[-2000:]
    answer: dict[str, Any] = json.loads(html.unescape(match.group(1)))
    return answer

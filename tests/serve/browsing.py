"""The server's page in headless Chromium: what a script inside it finds, told to the server that it came from."""

import json
import queue
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.headless import BROWSER, FLAGS, LISTEN
from tests.serve.served import SECONDS, running
from underpaint.serve.guard import Receive, Send

DRIVER = """
const found = {failures}, get2 = id => document.getElementById(id);
const until = async (holds, what) => { for (let turn = 0; turn < 4000; turn += 1) { if (holds()) return;
  await new Promise(done => setTimeout(done, 25)); } throw new Error('waited for ' + what); };
const fill = (id, value) => { const field = get2(id); field.value = value; field.dispatchEvent(new Event('change')); };
const seen = canvas => new Set(new Uint32Array(canvas.getContext('2d').getImageData(0, 0, canvas.width, canvas.height)
  .data.buffer)).size;
addEventListener('load', async () => {
  try { %s } catch (error) { found.failures.push(String(error)); }
  await fetch('/found', {method: 'POST', body: JSON.stringify(found)});
});
"""


class Driven:
    """An application whose page runs a script as well, at /driven, under the page's own policy."""

    def __init__(self, app: Any, script: str) -> None:
        self.app, self.script = app, DRIVER % script
        self.found: queue.Queue[dict[str, Any]] = queue.Queue()

    async def __call__(self, scope: Any, receive: Receive, send: Send) -> None:
        path = scope.get("path")
        if path == "/found":
            body = b""
            while True:
                message = await receive()
                body += message["body"]
                if not message["more_body"]:
                    break
            self.found.put(json.loads(body))
            await send({"type": "http.response.start", "status": 204, "headers": []})
            await send({"type": "http.response.body", "body": b""})
        elif path == "/driven":
            await self.app({**scope, "path": "/"}, receive, self._with_script(send))
        else:
            await self.app(scope, receive, send)

    def _with_script(self, send: Send) -> Send:
        async def sent(message: Any) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [pair for pair in message["headers"] if pair[0] != b"content-length"]
            elif message["body"]:
                page = message["body"].decode().replace("</title>", "</title>" + LISTEN, 1)
                message["body"] = page.replace("</body>", f"<script>{self.script}</script></body>").encode()
            await send(message)

        return sent


def browse(
    app: Any, engine: Any, script: str, folder: Path, *flags: str, meanwhile: Callable[[], None] | None = None
) -> dict[str, Any]:
    """What `script` puts into `found` in the page of an application that listens on loopback.

    meanwhile: called while the browser runs.
    """
    driven, profile = Driven(app, script), folder / "profile"
    options = (f"--user-data-dir={profile}", "--window-size=1200,1000", "--remote-debugging-port=0")
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    with running(driven, engine) as (_, _, port):
        command = [str(BROWSER), *FLAGS, *options, *flags, f"http://127.0.0.1:{port}/driven"]
        browser = subprocess.Popen(command, **quiet)
        try:
            if meanwhile is not None:
                meanwhile()
            return driven.found.get(timeout=SECONDS)
        except queue.Empty:
            raise AssertionError(f"the page in the browser sent nothing within {SECONDS:.0f} seconds") from None
        finally:
            browser.terminate()
            browser.wait(SECONDS)
            shutil.rmtree(profile, ignore_errors=True)

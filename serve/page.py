"""The web page at `/`, which shows a picture while its tokens are decided, and the colours for tokens."""

from __future__ import annotations

from importlib.resources import files
from typing import TYPE_CHECKING, Final

import numpy as np
from fastapi import FastAPI
from fastapi.concurrency import run_in_threadpool
from fastapi.responses import HTMLResponse, Response

from underpaint.algos.arrays import FloatArray, IntArray
from underpaint.runtime.models import OpenModels
from underpaint.serve.requests import RequestError

if TYPE_CHECKING:
    from underpaint.serve.app import DrawingEngine

_MOST_PICTURES: Final = 64
"""Maximum number of pictures that are decoded to find the colours of all codes."""
_POLICY: Final = (
    "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; img-src data:; connect-src 'self'; "
    "form-action 'none'; base-uri 'none'; frame-ancestors 'none'"
)
"""Content security policy of the page: it may load only itself and this server's answers."""


def add_page(app: FastAPI, engine: DrawingEngine) -> None:
    """Add the page and the colours of the codes to the application."""
    page = files("underpaint.serve").joinpath("page.html").read_text(encoding="utf-8")

    @app.get("/", include_in_schema=False)
    async def show() -> Response:
        return HTMLResponse(page, headers={"content-security-policy": _POLICY, "cache-control": "no-cache"})

    @app.get("/v1/codes", include_in_schema=False)
    async def codes() -> Response:
        colours = await run_in_threadpool(engine.code_colours)
        return Response(colours, media_type="application/octet-stream", headers={"cache-control": "max-age=3600"})


def code_colours(models: OpenModels) -> bytes:
    """Return the mean RGB colour of every code, decoded among similar codes: [V, 3] bytes.

    Raises:
        RequestError: The codebook is too large; it would take too long.
    """
    cells, codebook = models.grid.cells, np.asarray(models.tables.codebook, dtype=np.float64)
    size = len(codebook)
    if size > _MOST_PICTURES * cells:
        raise RequestError(404, f"this model's {size:,} codes are too many to show", "too_many_codes")
    colours = np.zeros((size, 3), dtype=np.uint8)
    order = _by_likeness(codebook)
    for first in range(0, size, cells):
        codes = np.resize(order[first : first + cells], cells).reshape(models.grid)
        codes[1::2] = codes[1::2, ::-1]  # reverse every second row, so that vertical neighbours are similar too
        picture = models.picture(codes.ravel())
        high, wide = picture.shape[0] // models.grid.height, picture.shape[1] // models.grid.width
        patches = picture[: high * models.grid.height, : wide * models.grid.width]
        patches = patches.reshape(models.grid.height, high, models.grid.width, wide, 3)
        colours[codes.ravel()] = patches.mean((1, 3)).reshape(-1, 3).astype(np.uint8)
    return colours.tobytes()


def _by_likeness(codebook: FloatArray) -> IntArray:
    """Return the codes sorted along the principal axis of the codebook [V, E]."""
    centred = codebook - codebook.mean(0)
    axis = np.ones(centred.shape[1])
    for _ in range(8):  # power iteration: the order need not be exact
        axis = centred.T @ (centred @ axis)
        axis /= max(float(np.linalg.norm(axis)), 1e-300)
    return np.argsort(centred @ axis, kind="stable")

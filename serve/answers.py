"""Answers to clients: all pictures in one response, or a stream of events."""

from __future__ import annotations

import asyncio
import json
import logging
from base64 import b64encode
from collections.abc import AsyncIterator
from dataclasses import asdict
from time import time
from typing import Any, Final

from fastapi import Request
from fastapi.responses import JSONResponse, Response

from underpaint.serve.guard import Receive, Send, error_body
from underpaint.serve.requests import CellsEvent, DrawRequest, Event, FinishedImage, PartialImage, RequestError
from underpaint.serve.ticket import Ticket

_GONE: Final = 499
"""Status in logs and metrics for a client that left before the answer."""
_LOG = logging.getLogger("underpaint.serve")


async def whole_answer(ticket: Ticket, http: Request) -> Response:
    """All pictures in one answer."""
    images: list[FinishedImage] = []

    async def collect() -> None:
        async for event in ticket.events():
            if isinstance(event, RequestError):
                raise event
            if isinstance(event, FinishedImage):
                images.append(event)

    if not await _unless_gone(collect(), http.receive, ticket):
        return Response(status_code=_GONE)
    images.sort(key=lambda one: one.image)
    tokens = sum(one.tokens for one in images)
    return JSONResponse(
        {
            "created": int(time()),
            "data": [{"b64_json": b64encode(one.content).decode(), "underpaint": _cost(one)} for one in images],
            "output_format": ticket.request.output_format,
            "size": images[0].size,
            "usage": _usage(tokens),
        }
    )


async def _unless_gone(work: Any, receive: Receive, ticket: Ticket) -> bool:
    """Run `work` while the client is connected; False if the client left. Cancels an unfinished ticket."""

    async def left() -> None:
        while (await receive())["type"] != "http.disconnect":
            pass

    working, leaving = asyncio.ensure_future(work), asyncio.ensure_future(left())
    try:
        await asyncio.wait({working, leaving}, return_when=asyncio.FIRST_COMPLETED)
        if working.done():
            await working
            return True
        return False
    finally:
        for task in (working, leaving):
            task.cancel()
        if not ticket.closed:
            ticket.cancel()


class EventStream(Response):
    """The events of a ticket as server-sent events; a client that leaves or stops reading cancels the ticket."""

    media_type = "text/event-stream"

    def __init__(self, ticket: Ticket, stalled_seconds: float) -> None:
        super().__init__(headers={"cache-control": "no-store", "x-accel-buffering": "no"})
        del self.headers["content-length"]
        self._ticket, self._stalled = ticket, stalled_seconds

    async def __call__(self, scope: Any, receive: Receive, send: Send) -> None:
        """See ASGI."""

        async def write() -> None:
            await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
            async for chunk in server_sent_events(self._ticket):
                async with asyncio.timeout(self._stalled):
                    await send({"type": "http.response.body", "body": chunk, "more_body": True})
            await send({"type": "http.response.body", "body": b"", "more_body": False})

        try:
            await _unless_gone(write(), receive, self._ticket)
        except TimeoutError:
            _LOG.info("%s: its client read nothing for %.0f seconds", self._ticket.request.id, self._stalled)


async def server_sent_events(ticket: Ticket) -> AsyncIterator[bytes]:
    """Encode the events of a ticket as server-sent events."""
    async for event in ticket.events():
        name, data = _name_and_data(event, ticket.request)
        yield f"event: {name}\ndata: {json.dumps(data, separators=(',', ':'))}\n\n".encode()


def _name_and_data(event: Event, request: DrawRequest) -> tuple[str, dict[str, Any]]:
    """Return the name and the data of an event."""
    if isinstance(event, RequestError):
        return "error", {"type": "error", **error_body(event)}
    if isinstance(event, CellsEvent):
        data = asdict(event)
        number = data.pop("number")
        name = "underpaint.cells"
        return name, {"type": name, "request": request.id, "image": data.pop("image"), "pass": number, **data}
    common = {
        "b64_json": b64encode(event.content).decode(),
        "created_at": int(time()),
        "background": "opaque",
        "output_format": request.output_format,
        "quality": "auto",
        "request": request.id,
        "image": event.image,
    }
    if isinstance(event, PartialImage):
        name = "image_generation.partial_image"
        fields: dict[str, Any] = {"size": request.size, "partial_image_index": event.number, "decided": event.decided}
    else:
        name = "image_generation.completed"
        fields = {"size": event.size, "usage": _usage(event.tokens), "underpaint": _cost(event)}
    return name, {"type": name, **common, **fields}


def _usage(tokens: int) -> dict[str, Any]:
    details = {"image_tokens": 0, "text_tokens": 0}
    return {"input_tokens": 0, "input_tokens_details": details, "output_tokens": tokens, "total_tokens": tokens}


def _cost(image: FinishedImage) -> dict[str, Any]:
    """Return the cost and settings of a picture, for the `underpaint` field of answers."""
    return {
        "seed": image.seed,
        "method": image.method,
        "tokens": image.tokens,
        "target_passes": image.target_passes,
        "drafter_passes": image.drafter_passes,
        "tokens_per_pass": round(image.tokens / max(1, image.target_passes), 3),
        "queue_seconds": round(image.queue_seconds, 4),
        "draw_seconds": round(image.draw_seconds, 4),
    }

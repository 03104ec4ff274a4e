"""The HTTP application: OpenAI's images API over an engine, with health, readiness and metrics."""

from __future__ import annotations

import logging
import secrets
from typing import Annotated, Any, Final, Literal, Protocol

from fastapi import FastAPI, Request
from fastapi.concurrency import run_in_threadpool
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, Response
from pydantic import BaseModel, ConfigDict, Field
from starlette.exceptions import HTTPException

from underpaint.algos.chance import MOST_SEED
from underpaint.serve.answers import EventStream, whole_answer
from underpaint.serve.guard import Guard, Keys, error_body, error_headers
from underpaint.serve.metrics import Metrics
from underpaint.serve.page import add_page
from underpaint.serve.requests import (
    DrawRequest,
    Limits,
    ModelInfo,
    OutputFormat,
    RequestError,
    invalid,
)
from underpaint.serve.ticket import Ticket

_LOG = logging.getLogger("underpaint.serve")


class DrawingEngine(Protocol):
    """The engine interface that the application uses: `EngineLoop`, or `ReplicaFront` for several engines."""

    metrics: Metrics

    @property
    def info(self) -> ModelInfo:
        """The models, methods and sizes that it offers."""
        ...

    @property
    def alive(self) -> bool:
        """Whether it is running."""
        ...

    @property
    def ready(self) -> bool:
        """Whether it accepts requests."""
        ...

    def code_colours(self) -> bytes:
        """See `page.code_colours`; the first call is slow."""
        ...

    def submit(self, request: DrawRequest) -> Ticket:
        """Accept a request, in a thread that may block; raises RequestError if it is refused."""
        ...


class ImageRequest(BaseModel):
    """The body of `POST /v1/images/generations`: OpenAI's fields, then this server's own."""

    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)

    prompt: Annotated[str, Field(min_length=1)]
    model: str | None = None
    n: Annotated[int, Field(ge=1)] | None = 1
    size: str | None = "auto"
    response_format: Literal["b64_json", "url"] | None = None
    output_format: OutputFormat | None = "png"
    stream: bool | None = False
    partial_images: Annotated[int, Field(ge=0, le=3)] | None = 0
    user: str | None = None
    quality: str | None = Field(default=None, description="Ignored, as are style, background and moderation.")
    style: str | None = None
    background: str | None = None
    moderation: str | None = None
    output_compression: int | None = None
    seed: Annotated[int, Field(ge=0, le=MOST_SEED)] | None = Field(
        default=None, description="Picture i of n is drawn with seed + i; the same seed draws the same picture."
    )
    method: str | None = Field(default=None, description="See `underpaint methods`.")
    temperature: Annotated[float, Field(ge=0)] | None = None
    top_k: Annotated[int, Field(ge=0)] | None = None
    top_p: Annotated[float, Field(gt=0, le=1)] | None = None
    guidance: float | None = None
    deadline: Annotated[float, Field(gt=0)] | None = Field(
        default=None, description="Seconds from arrival within which the last picture is wanted."
    )
    events: bool | None = Field(default=False, description="With stream: also an event for every decoding cycle.")
    picture_every: Annotated[int, Field(ge=0)] | None = Field(
        default=0, description="With stream: cycles between partial pictures, in place of partial_images."
    )


def create_app(
    engine: DrawingEngine, limits: Limits | None = None, keys: Keys | None = None, log_prompts: bool = False
) -> FastAPI:
    """Create the HTTP application.

    Args:
        engine: The engine that draws.
        limits: The limits on requests; None uses the defaults.
        keys: The accepted API keys; None accepts requests without a key.
        log_prompts: Whether prompts are logged.

    Returns:
        The application, for any ASGI server.
    """
    limits = limits or Limits()
    app = FastAPI(title="Underpaint", docs_url=None, redoc_url=None, redirect_slashes=False)
    errors: dict[int | str, dict[str, Any]] = {code: {"description": "OpenAI's error object"} for code in _ERRORS}

    @app.post("/v1/images/generations", responses=errors)
    async def generate(body: ImageRequest, http: Request) -> Response:
        request = _draw_request(body, http, engine.info, limits)
        if log_prompts:
            _LOG.info("%s prompt %r by %s, seeds %s", request.id, request.prompt, request.method, request.seeds)
        ticket = await run_in_threadpool(engine.submit, request)
        if body.stream:
            return EventStream(ticket, limits.stalled_seconds)
        return await whole_answer(ticket, http)

    @app.get("/v1/models")
    async def models() -> dict[str, Any]:
        return {"object": "list", "data": [_model(engine.info)]}

    @app.get("/v1/models/{name}", responses=errors)
    async def model(name: str) -> dict[str, Any]:
        _check_model(name, engine.info)
        return _model(engine.info)

    @app.get("/health")
    async def health() -> Response:
        return JSONResponse({"status": "ok" if engine.alive else "failed"}, 200 if engine.alive else 503)

    @app.get("/ready")
    async def ready() -> Response:
        return JSONResponse({"ready": engine.ready}, 200 if engine.ready else 503)

    @app.get("/metrics")
    async def metrics() -> Response:
        return Response(engine.metrics.text(), media_type="text/plain; version=0.0.4")

    @app.exception_handler(RequestError)
    async def refused(http: Request, error: RequestError) -> Response:
        return JSONResponse(error_body(error), error.status, error_headers(error))

    @app.exception_handler(RequestValidationError)
    async def malformed(http: Request, error: RequestValidationError) -> Response:
        field, message = _malformed(error.errors()[0])
        return await refused(http, invalid(message, field))

    @app.exception_handler(HTTPException)
    async def other(http: Request, error: HTTPException) -> Response:
        messages = {404: "there is nothing at this path", 405: "this path takes another method"}
        message = messages.get(error.status_code, str(error.detail))
        response = await refused(http, RequestError(error.status_code, message, "bad_request"))
        response.headers.update(error.headers or {})
        return response

    @app.exception_handler(Exception)
    async def failed(http: Request, error: Exception) -> Response:
        return await refused(http, RequestError(500, "the server failed; its log says why", "internal_error"))

    add_page(app, engine)
    app.add_middleware(
        Guard, limits=limits, keys=keys, count=lambda status: engine.metrics.requests.labels(status).inc()
    )
    return app


_FIELDS: Final = tuple(ImageRequest.model_fields)
_ERRORS: Final = (400, 401, 404, 408, 413, 429, 503, 504)


def _malformed(error: dict[str, Any]) -> tuple[str | None, str]:
    """Return the wrong field (None for the whole body) and an error message; see `pydantic_core.ErrorDetails`."""
    path = [str(part) for part in error["loc"] if part != "body"]
    if not path or error["type"] == "json_invalid":
        return None, "body: expected a JSON object with the field prompt, and the header Content-Type: application/json"
    if error["type"] == "extra_forbidden":
        return path[0], f"{path[0][:80]}: there is no such field; leave it out, known are {', '.join(_FIELDS)}"
    message = str(error["msg"]).removeprefix("Input should be ").lower()
    expected = "this field" if error["type"] == "missing" else message.replace("string should have", "a text of")
    came = "" if error["type"] == "missing" else f", got {error['input']!r:.80}"
    return path[0], f"{path[0]}: expected {expected}{came}"


def _draw_request(body: ImageRequest, http: Request, info: ModelInfo, limits: Limits) -> DrawRequest:
    """Convert the body to an engine request; raises RequestError if a field exceeds the limits."""
    count = body.n or 1
    if body.model is not None:
        _check_model(body.model, info)
    if body.response_format == "url":
        raise invalid("response_format: expected b64_json, got url; this server keeps no pictures", "response_format")
    if count > limits.images:
        raise invalid(f"n: expected 1 to {limits.images}, got {count}; send several requests", "n")
    if len(body.prompt) > limits.prompt_characters:
        most = limits.prompt_characters
        raise invalid(f"prompt: expected at most {most} characters, got {len(body.prompt)}; shorten it", "prompt")
    try:
        body.prompt.encode()
    except UnicodeEncodeError as error:
        raise invalid("prompt: expected text, got half of a surrogate pair", "prompt") from error
    if (body.events or body.picture_every or body.partial_images) and not body.stream:
        raise invalid("events, picture_every, partial_images: expected stream too; set stream to true", "stream")
    first = secrets.randbelow(2**31) if body.seed is None else body.seed
    if first + count - 1 > MOST_SEED:
        raise invalid(f"seed: expected at most {MOST_SEED - count + 1} for {count} pictures, got {first}", "seed")
    return DrawRequest(
        id=http.state.id,
        prompt=body.prompt,
        seeds=tuple(range(first, first + count)),
        method=body.method or info.default_method,
        size=body.size or "auto",
        temperature=body.temperature,
        top_k=body.top_k,
        top_p=body.top_p,
        guidance=body.guidance,
        client=http.state.client,
        seconds=body.deadline,
        partial_images=body.partial_images or 0,
        picture_every=body.picture_every or 0,
        events=bool(body.events),
        output_format=body.output_format or "png",
    )


def _check_model(name: str, info: ModelInfo) -> None:
    if name != info.name:
        raise RequestError(404, f"model: expected {info.name}, got {name[:80]!r}", "model_not_found", "model")


def _model(info: ModelInfo) -> dict[str, Any]:
    details = {name: value for name, value in info._asdict().items() if name != "name"}
    return {"id": info.name, "object": "model", "created": 0, "owned_by": "underpaint", "underpaint": details}

"""ASGI middleware that checks every request first: API keys, limits of size and time, and a log line."""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import json
import logging
from collections.abc import Awaitable, Callable, MutableMapping
from pathlib import Path
from time import monotonic
from typing import Any, Final, TypeAlias
from uuid import uuid4

from underpaint.serve.requests import Limits, RequestError

Message: TypeAlias = MutableMapping[str, Any]
Receive: TypeAlias = Callable[[], Awaitable[Message]]
Send: TypeAlias = Callable[[Message], Awaitable[None]]
Asgi: TypeAlias = Callable[[Message, Receive, Send], Awaitable[None]]

_OPEN_PATHS: Final = ("/", "/health", "/ready")
"""Paths that need no API key."""
_LEAST_KEY: Final = 16
_MOST_FILE: Final = 1 << 20
_LOG = logging.getLogger("underpaint.serve")


class Keys:
    """The accepted API keys; only their hashes are stored."""

    def __init__(self, keys: list[str]) -> None:
        self._digests = [hashlib.sha256(key.encode()).digest() for key in keys]

    @classmethod
    def read(cls, path: Path) -> Keys:
        """Read keys from a file: one per line, at least 16 characters each; lines that start with # are comments.

        Raises:
            ValueError, OSError: The file cannot be read, has no key, or has a key that is too short.
        """
        with path.open("rb") as file:
            content = file.read(_MOST_FILE + 1)
        try:
            lines = content.decode("ascii").split("\n") if len(content) <= _MOST_FILE else []
        except UnicodeDecodeError as error:
            raise ValueError(f"--api-key-file {path}: expected lines of ASCII, got other bytes") from error
        keys = [line.strip() for line in lines if line.strip() and not line.startswith("#")]
        if not keys or min(map(len, keys)) < _LEAST_KEY:
            raise ValueError(
                f"--api-key-file {path}: expected a key of at least {_LEAST_KEY} characters in each line, got "
                f"{'none' if not keys else 'a shorter one'}; make one with: python -c 'import secrets; "
                "print(secrets.token_urlsafe())'"
            )
        return cls(keys)

    def client(self, header: str) -> str | None:
        """Return a client name derived from the key in "Bearer KEY"; None if the key is not accepted."""
        kind, _, key = header.partition(" ")
        digest = hashlib.sha256(key.strip().encode("utf-8", "replace")).digest()
        matches = [hmac.compare_digest(digest, one) for one in self._digests]
        return f"key-{digest.hex()[:12]}" if kind.lower() == "bearer" and any(matches) else None


class Guard:
    """Refuses requests without a valid key, and bodies that are too large or too slow; reads whole bodies first.

    It sets `client` (for the fair queue) and `id` in scope["state"].
    """

    def __init__(self, app: Asgi, limits: Limits, keys: Keys | None, count: Callable[[int], None]) -> None:
        """Wrap an application; `count` is called with the status of every answer."""
        self._app, self._limits, self._keys, self._count = app, limits, keys, count

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        """See ASGI."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        started, status = monotonic(), 0

        async def send_with_id(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                message["headers"] = [*message.get("headers", ()), (b"x-request-id", name.encode())]
            await send(message)

        name = f"img-{uuid4().hex[:16]}"
        state = scope.setdefault("state", {})
        state["id"] = name
        try:
            try:
                state["client"] = self._client(scope)
                body = await self._body(scope, receive)
            except RequestError as error:
                await answer(send_with_id, error)
            else:
                await self._app(scope, _replayed(body, receive), send_with_id)
        finally:
            self._count(status or 500)
            path = scope["path"].encode("unicode_escape").decode()
            _LOG.info("%s %s %s %d %.3f s", name, scope["method"], path, status or 500, monotonic() - started)

    def _client(self, scope: Message) -> str:
        peer = scope.get("client")
        if self._keys is None or scope["path"] in _OPEN_PATHS:
            return str(peer[0]) if peer else ""
        credentials = [value for header, value in scope["headers"] if header == b"authorization"]
        client = self._keys.client(credentials[0].decode("latin-1")) if credentials else None
        if client is None:
            message = "expected a key of this server in the header Authorization: Bearer KEY, got " + (
                "another one" if credentials else "none"
            )
            raise RequestError(401, message, "invalid_api_key")
        return client

    async def _body(self, scope: Message, receive: Receive) -> bytes:
        most, parts, size = self._limits.body_bytes, list[bytes](), 0
        declared = [value for header, value in scope["headers"] if header == b"content-length"]
        too_large = RequestError(413, f"body: expected at most {most:,} bytes; shorten the request", "body_too_large")
        if declared and declared[0].isdigit() and int(declared[0]) > most:
            raise too_large
        try:
            async with asyncio.timeout(self._limits.stalled_seconds):
                while True:
                    message = await receive()
                    parts.append(message.get("body", b""))
                    size += len(parts[-1])
                    if size > most:
                        raise too_large
                    if message["type"] == "http.disconnect" or not message.get("more_body", False):
                        return b"".join(parts)
        except TimeoutError as error:
            waited = f"{self._limits.stalled_seconds:.0f} seconds"
            raise RequestError(408, f"the request did not arrive within {waited}; send it again", "timeout") from error


def error_body(error: RequestError) -> dict[str, Any]:
    """Return the JSON body of an error in OpenAI's format."""
    kind = (
        "invalid_request_error" if error.status < 429 else "rate_limit_error" if error.status == 429 else "server_error"
    )
    return {"error": {"message": str(error), "type": kind, "param": error.parameter, "code": error.code}}


def error_headers(error: RequestError) -> dict[str, str]:
    """Headers that say whether and when to retry."""
    headers = {} if error.retry_after is None else {"retry-after": str(error.retry_after)}
    if error.status == 401:
        headers["www-authenticate"] = "Bearer"
    return headers if error.status in (408, 429, 503) else {**headers, "x-should-retry": "false"}


async def answer(send: Send, error: RequestError) -> None:
    """Send an error response."""
    content = json.dumps(error_body(error)).encode()
    headers = [(b"content-type", b"application/json"), (b"content-length", str(len(content)).encode())]
    headers += [(name.encode(), value.encode()) for name, value in error_headers(error).items()]
    await send({"type": "http.response.start", "status": error.status, "headers": headers})
    await send({"type": "http.response.body", "body": content})


def _replayed(body: bytes, receive: Receive) -> Receive:
    """Return a receive function that first returns a body already read, then later messages."""
    body_sent = False

    async def again() -> Message:
        nonlocal body_sent
        if body_sent:
            return await receive()
        body_sent = True
        return {"type": "http.request", "body": body, "more_body": False}

    return again

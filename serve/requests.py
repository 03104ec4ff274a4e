"""Requests to a server, its limits, and the events that it sends while it draws."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import ceil
from typing import Literal, NamedTuple, TypeAlias

OutputFormat: TypeAlias = Literal["png", "webp", "jpeg"]
CellToken: TypeAlias = tuple[int, int]
"""A cell of the picture, in raster order, and its token."""


class RequestError(Exception):
    """A request that is refused or cannot be finished.

    Attributes:
        status: HTTP status.
        code: A short machine-readable name, as in OpenAI's errors.
        parameter: The wrong field of the request; None if no field is wrong.
        retry_after: Seconds after which the client should try again; None if that does not help.
    """

    def __init__(
        self, status: int, message: str, code: str, parameter: str | None = None, retry_after: int | None = None
    ) -> None:
        super().__init__(message)
        self.status, self.code, self.parameter, self.retry_after = status, code, parameter, retry_after

    def __reduce__(self) -> tuple[type[RequestError], tuple[int, str, str, str | None, int | None]]:
        return type(self), (self.status, str(self), self.code, self.parameter, self.retry_after)


def invalid(message: str, parameter: str | None = None) -> RequestError:
    """Return an error for an invalid request: status 400."""
    return RequestError(400, message, "invalid_value", parameter)


def too_late(seconds: float) -> RequestError:
    """Return an error for a request that was not finished within so many seconds: status 504."""
    late = f"the request was not finished within its {seconds:.3g} seconds"
    return RequestError(504, f"{late}; allow more, or ask for fewer pictures", "deadline_exceeded")


def failed() -> RequestError:
    """Return an error for a request that the server, by its own fault, did not draw: status 500."""
    return RequestError(500, "the server failed to draw this; its log says why", "internal_error")


def shutting_down() -> RequestError:
    """Return an error for a request that arrives, or is not finished, while the server shuts down: status 503."""
    message = "the server is shutting down and takes no more requests; send this one to another, or later"
    return RequestError(503, message, "shutting_down")


@dataclass(frozen=True, slots=True)
class Limits:
    """The limits of one server.

    Attributes:
        body_bytes: Maximum size of a request body, in bytes.
        prompt_characters: Maximum length of a prompt.
        images: Maximum number of pictures per request.
        seconds: Maximum time from a request's arrival to its last picture.
        waiting: Maximum number of queued pictures, over all requests.
        stalled_seconds: How long a client may leave sent bytes unread, or take to send its request.
    """

    body_bytes: int = 65_536
    prompt_characters: int = 2_000
    images: int = 10
    seconds: float = 600.0
    waiting: int = 256
    stalled_seconds: float = 30.0

    def seconds_of(self, request: DrawRequest) -> float:
        """Return the time limit of a request in seconds: its own, but at most the server's."""
        return min(self.seconds, request.seconds or self.seconds)

    def check_room(self, waiting: int, count: int, seconds: float) -> None:
        """Raise RequestError (429) if `count` more pictures exceed the queue; `seconds` pass between two pictures."""
        if waiting + count > self.waiting:
            raise RequestError(
                429,
                f"{waiting} pictures wait already, of at most {self.waiting}, and this request asks for {count}; try "
                "again later, or ask for fewer",
                "queue_full",
                retry_after=min(600, max(1, ceil(waiting * seconds))),
            )


class ModelInfo(NamedTuple):
    """A server's models.

    Attributes:
        name: Name of the models.
        sizes: Picture sizes, "WIDTHxHEIGHT", or "auto" if the size is unknown.
        default_size: The size for requests that name no size.
        methods: Names of the decoding methods.
        default_method: The method for requests that name no method.
        sampling: The model's defaults, by field name of a request.
    """

    name: str
    sizes: tuple[str, ...]
    default_size: str
    methods: tuple[str, ...]
    default_method: str
    sampling: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class DrawRequest:
    """A request for pictures of one prompt, one per seed. It can be pickled.

    Attributes:
        id: Identifies the request in events and logs.
        prompt: The prompt in the model's format.
        seeds: One seed per picture.
        method: See `underpaint methods`.
        size: "WIDTHxHEIGHT" in pixels, or "auto".
        temperature, top_k, top_p, guidance: None uses the model's default.
        client: Name of the client in the fair queue.
        seconds: Time limit from the request's arrival; None uses the server's.
        partial_images: Number of evenly spaced partial pictures to send.
        picture_every: Cycles between partial pictures; 0 sends only those of `partial_images`.
        events: Whether to send a `CellsEvent` for every cycle.
        output_format: File format of all pictures.
    """

    id: str
    prompt: str
    seeds: tuple[int, ...]
    method: str
    size: str = "auto"
    temperature: float | None = None
    top_k: int | None = None
    top_p: float | None = None
    guidance: float | None = None
    client: str = ""
    seconds: float | None = None
    partial_images: int = 0
    picture_every: int = 0
    events: bool = False
    output_format: OutputFormat = "png"


@dataclass(frozen=True, slots=True)
class CellsEvent:
    """The result of one decoding cycle of one picture.

    Attributes:
        image: Index of the picture in the request.
        number: Number of the cycle, counted from 1.
        accepted: Accepted draft tokens.
        redrawn: Tokens that replace rejected draft tokens.
        drawn: Tokens of cells without a draft token.
        rejected: Cells whose draft tokens were rejected.
        decided: Number of cells that have a token.
        cells: Number of cells in the picture.
    """

    image: int
    number: int
    accepted: tuple[CellToken, ...]
    redrawn: tuple[CellToken, ...]
    drawn: tuple[CellToken, ...]
    rejected: tuple[int, ...]
    decided: int
    cells: int


@dataclass(frozen=True, slots=True)
class PartialImage:
    """An encoded partial picture; cells without a token are grey.

    Attributes:
        image: Index of the picture in the request.
        number: Index among the picture's partial ones.
        decided: Number of cells that have a token.
        content: The image file.
    """

    image: int
    number: int
    decided: int
    content: bytes


@dataclass(frozen=True, slots=True)
class FinishedImage:
    """An encoded picture with its cost.

    Attributes:
        image: Index of the picture in the request.
        seed: The seed that reproduces it.
        content: The image file.
        size: "WIDTHxHEIGHT" in pixels.
        method: Name of the decoding method.
        tokens: Number of tokens in the picture.
        target_passes, drafter_passes: Number of forward passes.
        queue_seconds: Waiting time for a batch slot.
        draw_seconds: Time in the slot; includes the cycles of other pictures in between.
        accepted: Number of accepted draft tokens.
        drafted: Number of draft tokens: one per tree level, or one per cell of a drafted picture.
    """

    image: int
    seed: int
    content: bytes
    size: str
    method: str
    tokens: int
    target_passes: int
    drafter_passes: int
    queue_seconds: float
    draw_seconds: float
    accepted: int
    drafted: int


Event: TypeAlias = CellsEvent | PartialImage | FinishedImage | RequestError
"""Any event of a ticket; a RequestError is always the last one."""

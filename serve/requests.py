"""What a server is asked to draw, the limits of it, and what it answers while it draws."""

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
        code: A short name for programs, as OpenAI's errors have one.
        parameter: The field of the request that is at fault; None where none is.
        retry_after: Seconds after which to try again; None where that is of no use.
    """

    def __init__(
        self, status: int, message: str, code: str, parameter: str | None = None, retry_after: int | None = None
    ) -> None:
        super().__init__(message)
        self.status, self.code, self.parameter, self.retry_after = status, code, parameter, retry_after

    def __reduce__(self) -> tuple[type[RequestError], tuple[int, str, str, str | None, int | None]]:
        return type(self), (self.status, str(self), self.code, self.parameter, self.retry_after)


def invalid(message: str, parameter: str | None = None) -> RequestError:
    """A request that no server would take: status 400."""
    return RequestError(400, message, "invalid_value", parameter)


def too_late(seconds: float) -> RequestError:
    """A request that was not finished within so many seconds: status 504."""
    late = f"the request was not finished within its {seconds:.3g} seconds"
    return RequestError(504, f"{late}; allow more, or ask for fewer pictures", "deadline_exceeded")


def shutting_down() -> RequestError:
    """A request that comes, or is not finished, as the server ends: status 503."""
    said = "the server is shutting down and takes no more requests; send this one to another, or later"
    return RequestError(503, said, "shutting_down")


@dataclass(frozen=True, slots=True)
class Limits:
    """What one server takes.

    Attributes:
        body_bytes: Of a request.
        prompt_characters: Of a prompt.
        images: Pictures of one request.
        seconds: From a request's arrival to its last picture.
        waiting: Pictures that wait for a free slot, of all requests.
        stalled_seconds: How long a client may leave sent bytes unread, or take to send its request.
    """

    body_bytes: int = 65_536
    prompt_characters: int = 2_000
    images: int = 10
    seconds: float = 600.0
    waiting: int = 256
    stalled_seconds: float = 30.0

    def seconds_of(self, request: DrawRequest) -> float:
        """Seconds that a request has: those that it asks for, at most the server's."""
        return min(self.seconds, request.seconds or self.seconds)

    def check_room(self, waiting: int, count: int, seconds: float) -> None:
        """RequestError (429) where `count` pictures are too many while `waiting` wait, with `seconds` between them."""
        if waiting + count > self.waiting:
            raise RequestError(
                429,
                f"{waiting} pictures wait already, of at most {self.waiting}, and this request asks for {count}; try "
                "again later, or ask for fewer",
                "queue_full",
                retry_after=min(600, max(1, ceil(waiting * seconds))),
            )


class ModelInfo(NamedTuple):
    """What a server draws with. sizes: "WIDTHxHEIGHT"; sampling: the model's own, by the fields of a request."""

    name: str
    sizes: tuple[str, ...]
    default_size: str
    methods: tuple[str, ...]
    default_method: str
    sampling: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class DrawRequest:
    """Pictures of one prompt, one for each seed. It can be pickled.

    Attributes:
        id: Names the request in events and logs.
        prompt: As the model takes it.
        seeds: One picture each.
        method: See `underpaint methods`.
        size: "WIDTHxHEIGHT" in pixels, or "auto".
        temperature, top_k, top_p, guidance: None takes the model's own.
        client: Whom the request counts for where clients share the machine.
        seconds: Its deadline, from its arrival; None takes the server's.
        partial_images: Pictures on the way that the client asked for, evenly spaced.
        picture_every: Cycles between pictures on the way; 0 sends none but `partial_images`.
        events: Whether the client wants a `CellsEvent` for every cycle.
        output_format: Of all pictures.
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
    """What one cycle of one picture did.

    Attributes:
        image: The picture's place in the request.
        number: The cycle, counted from 1.
        accepted: Drafted tokens that stay.
        redrawn: Tokens that replace refused drafts.
        drawn: Tokens of cells that nothing was drafted for.
        rejected: Cells whose drafts were refused.
        decided: Cells that have their token.
        cells: Cells of the picture.
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
    """A picture on the way, encoded; cells without a token are grey. number: counted from 0, of this picture."""

    image: int
    number: int
    decided: int
    content: bytes


@dataclass(frozen=True, slots=True)
class FinishedImage:
    """A picture, encoded, and what it cost.

    Attributes:
        image: The picture's place in the request.
        seed: What to ask for to draw it again.
        content: The file.
        size: "WIDTHxHEIGHT" in pixels.
        method: What drew it.
        tokens: Of the picture.
        target_passes, drafter_passes: Forward passes.
        queue_seconds: Until a slot was free.
        draw_seconds: In the slot; other pictures' cycles between its own count too.
        accepted: Drafted tokens that were kept.
        drafted: Drafted tokens, one a level of a tree, or one a cell of a drafted picture.
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
"""What a ticket gives; a RequestError is its last event."""

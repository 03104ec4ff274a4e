"""The metrics at `GET /metrics`, in Prometheus format."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from time import monotonic
from typing import Final

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

_WINDOW: Final = 60.0
"""Length in seconds of the window for the token rate."""
_BUCKETS: Final = (0.005, 0.02, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0, 600.0)


class Metrics:
    """The metrics of one engine loop; each server has its own registry."""

    def __init__(self, waiting: Callable[[], int], busy: Callable[[], int], slots: int) -> None:
        """Create the metrics; `waiting` counts queued pictures, `busy` counts used slots, `slots` is the total."""
        self.registry = CollectorRegistry()
        registry = self.registry
        Gauge("underpaint_queue_pictures", "Pictures that wait for a slot", registry=registry).set_function(waiting)
        Gauge("underpaint_batch_occupancy", "Slots that draw a picture now", registry=registry).set_function(busy)
        Gauge("underpaint_batch_slots", "Slots of the engine loop", registry=registry).set(slots)
        Gauge(
            "underpaint_tokens_per_second", "Tokens decided in the last minute, a second", registry=registry
        ).set_function(self._rate)
        self.requests = Counter("underpaint_requests", "Requests by HTTP status", ["status"], registry=registry)
        self.pictures = Counter("underpaint_pictures", "Finished pictures", ["method"], registry=registry)
        self.cancelled = Counter("underpaint_cancelled_requests", "Requests whose client left", registry=registry)
        self.stages = Histogram(
            "underpaint_stage_seconds",
            "Seconds of a picture by stage: encode, queue, draw, decode",
            ["stage"],
            buckets=_BUCKETS,
            registry=registry,
        )
        self._tokens = Counter("underpaint_tokens", "Tokens of finished pictures", ["method"], registry=registry)
        self._passes = Counter(
            "underpaint_target_passes", "Target passes of finished pictures", ["method"], registry=registry
        )
        self._accepted = Counter(
            "underpaint_accepted_tokens", "Drafted tokens that were kept", ["method"], registry=registry
        )
        self._drafted = Counter(
            "underpaint_drafted_tokens", "Tokens drafted, a token a tree level", ["method"], registry=registry
        )
        self._per_pass = Gauge("underpaint_tokens_per_pass", "Tokens a target pass", ["method"], registry=registry)
        self._acceptance = Gauge(
            "underpaint_acceptance_rate", "Kept of the drafted tokens", ["method"], registry=registry
        )
        self._totals: dict[str, list[int]] = {}
        self._recent: deque[tuple[float, int]] = deque()

    def text(self) -> bytes:
        """All metrics in Prometheus text format."""
        return generate_latest(self.registry)

    def decided(self, tokens: int) -> None:
        """Count the tokens of one cycle."""
        now = monotonic()
        self._recent.append((now, tokens))
        while self._recent and self._recent[0][0] < now - _WINDOW:
            self._recent.popleft()

    def finished(self, method: str, tokens: int, passes: int, accepted: int, drafted: int) -> None:
        """Count a finished picture.

        Args:
            method: Name of the decoding method.
            tokens: Number of tokens in the picture.
            passes: Number of target passes.
            accepted: Number of accepted draft tokens.
            drafted: Number of draft tokens, one per tree level.
        """
        totals = self._totals.setdefault(method, [0, 0, 0, 0])
        counters = (self._tokens, self._passes, self._accepted, self._drafted)
        for place, (counter, count) in enumerate(zip(counters, (tokens, passes, accepted, drafted), strict=True)):
            counter.labels(method).inc(count)
            totals[place] += count
        self.pictures.labels(method).inc()
        self._per_pass.labels(method).set(totals[0] / max(1, totals[1]))
        if totals[3]:
            self._acceptance.labels(method).set(totals[2] / totals[3])

    def _rate(self) -> float:
        since = monotonic() - _WINDOW
        return sum(tokens for at, tokens in tuple(self._recent) if at >= since) / _WINDOW

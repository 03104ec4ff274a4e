"""Runs engine loops as Ray Serve replicas, each in its own process."""

from __future__ import annotations

import asyncio
import logging
import os
import re
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from typing import Any, Final, NamedTuple, Self, TypeAlias
from uuid import uuid4

import ray
from ray import serve
from ray.exceptions import RayError
from ray.serve.exceptions import RayServeException

from underpaint.runtime.engines.context import usable_cores
from underpaint.serve.engine import EngineLoop
from underpaint.serve.models import ServedModels
from underpaint.serve.requests import DrawRequest, Event, Limits, ModelInfo, RequestError

OpenModels: TypeAlias = Callable[[int | None], ServedModels]
"""Loads the models of a replica with this many threads; None uses all cores. It must be picklable."""
_CHECKS: Final = 16
"""Maximum number of requests that a replica checks while all its slots are busy."""
_BOUNDLESS: Final = 1 << 30


class Scale(NamedTuple):
    """Minimum and maximum number of replicas; Ray autoscales between them."""

    least: int
    most: int

    @classmethod
    def read(cls, text: str) -> Self:
        """Read "N" or "MIN:MAX".

        Raises:
            ValueError: The text has neither form, or MIN exceeds MAX.
        """
        parts = re.fullmatch(r"(\d{1,4})(?::(\d{1,4}))?", text)
        least, most = (int(parts[1]), int(parts[2] or parts[1])) if parts else (0, 0)
        if not 1 <= least <= most:
            raise ValueError(f"--ray: expected a number of replicas such as 2, or MIN:MAX such as 1:4, got {text!r}")
        return cls(least, most)


class Replica:
    """One engine loop in a Ray process."""

    def __init__(self, open_models: OpenModels, threads: int | None, slots: int) -> None:
        """Load the models; the front enforces the limits, so there are none here."""
        limits = Limits(seconds=float(_BOUNDLESS), waiting=_BOUNDLESS)
        self._refusal = ""
        try:
            self._engine = EngineLoop(open_models(threads), slots, limits)
        except (ValueError, OSError) as error:  # `info` reports it: Ray would retry, with a less useful message
            self._refusal = str(error)

    def check_health(self) -> None:
        """Let Ray replace this replica: raises RuntimeError if the loop has ended."""
        if not self._refusal and not self._engine.alive:
            raise RuntimeError("the engine loop has ended")

    async def info(self) -> tuple[ModelInfo, dict[str, int]] | str:
        """Return the model information, and the cells of a picture by size; or why the models do not load."""
        if self._refusal:
            return self._refusal
        pipelines = self._engine.models.pipelines
        return self._engine.info, {size: models.grid.cells for size, models in pipelines.items()}

    async def code_colours(self) -> bytes | RequestError:
        """See `page.code_colours`."""
        try:
            return await asyncio.to_thread(self._engine.code_colours)
        except RequestError as error:
            return error

    async def check(self, request: DrawRequest) -> RequestError | None:
        """Return the error if the models cannot draw a request, else None."""
        try:
            await asyncio.to_thread(self._engine.prepare, request)
        except RequestError as error:
            return error
        return None

    async def draw(self, request: DrawRequest) -> AsyncIterator[Event]:
        """Draw one picture and yield its events. If the client leaves, its slot is freed."""
        try:
            ticket = await asyncio.to_thread(self._engine.submit, request)
        except RequestError as error:
            yield error
            return
        try:
            async for event in ticket.events():
                yield event
        finally:
            if not ticket.closed:
                ticket.cancel()


class Deployment:
    """The replicas under Ray Serve, with handles to call them."""

    def __init__(
        self, open_models: OpenModels, scale: Scale, slots: int, seconds: float, gpus: int, address: str | None
    ) -> None:
        """Start the replicas, and wait until the first ones have loaded their models.

        Args:
            open_models: Loads the models in a replica.
            scale: Minimum and maximum number of replicas.
            slots: Number of batch slots per replica.
            seconds: Time that a replica has to finish its pictures when Ray retires it.
            gpus: Number of GPUs per replica.
            address: Address of a Ray cluster; None starts a local one, whose cores the replicas share.

        Raises:
            ValueError: Ray cannot be reached, or the replicas do not start.
        """
        self._own_ray, self._address = not ray.is_initialized(), address
        self._name, self._handles = f"underpaint-{uuid4().hex[:8]}", list[Any]()
        try:
            self._start_ray(scale)
            resources: dict[str, float] = ray.cluster_resources() if gpus else {}  # type: ignore[no-untyped-call]
            there = resources.get("GPU", 0.0)
            if address is None and gpus * scale.least > there:
                raise ValueError(
                    f"expected {gpus * scale.least} GPUs, one for each replica, got {there:.0f}; ask for fewer replicas"
                )
            cores = usable_cores()
            threads = None if address is not None else max(1, cores // scale.most)
            deployed = serve.deployment(
                max_ongoing_requests=slots + _CHECKS,
                autoscaling_config={
                    "min_replicas": scale.least,
                    "max_replicas": scale.most,
                    "initial_replicas": scale.least,
                    "target_ongoing_requests": slots,
                    "upscale_delay_s": 5.0,
                },
                ray_actor_options={"num_cpus": threads or 1, "num_gpus": gpus},
                health_check_period_s=2.0,
                graceful_shutdown_timeout_s=seconds,
            )(Replica)
            bound = deployed.bind(open_models, threads, slots)
            handle = serve.run(bound, name=self._name, route_prefix=None)
            answer: tuple[ModelInfo, dict[str, int]] | str = handle.info.remote().result()
            self.draws: Any
            self.draws, self.checks = handle.options(stream=True).draw, handle.check
            self.colours = handle.code_colours
            self._handles = [handle, self.draws, self.checks, self.colours]
        except (RuntimeError, ConnectionError, ValueError, RayError) as error:
            self.end()
            raise ValueError(f"--ray: the replicas did not start: {str(error).strip().splitlines()[-1]}") from error
        if isinstance(answer, str):
            self.end()
            raise ValueError(answer)
        self.info, self.cells = answer

    def _start_ray(self, scale: Scale) -> None:
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
        os.environ.setdefault("GRPC_VERBOSITY", "ERROR")
        quiet: dict[str, Any] = {"log_to_driver": False, "logging_level": logging.ERROR}
        if self._own_ray and self._address is None:
            # The front does not draw, so the replicas get all cores; if there are more replicas than cores, they share.
            ray.init(num_cpus=max(usable_cores(), scale.most), include_dashboard=False, **quiet)
        elif self._own_ray:
            ray.init(address=self._address, **quiet)
        logging.getLogger("ray.serve").setLevel(logging.WARNING)
        serve.start(http_options={"location": "NoServer"}, logging_config={"log_level": "WARNING"})

    def end(self) -> None:
        """Delete the application, and stop Ray if it was started here."""
        for handle in self._handles:
            handle.shutdown()  # its background work would start Ray again
        if self._own_ray and self._address is None:
            ray.shutdown()
        elif ray.is_initialized():
            with suppress(RayError, RayServeException):  # the cluster itself may have failed
                serve.delete(self._name)
            if self._own_ray:
                ray.shutdown()

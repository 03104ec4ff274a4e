"""Engine loops under Ray Serve, each in a process of its own."""

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
"""Opens the models of a replica, on so many threads; None takes all cores. It can be pickled."""
_CHECKS: Final = 16
"""Requests that a replica checks while all its slots draw."""
_BOUNDLESS: Final = 1 << 30


class Scale(NamedTuple):
    """Replicas, at least and at most; Ray's autoscaling moves between the two."""

    least: int
    most: int

    @classmethod
    def read(cls, text: str) -> Self:
        """Read "N" or "MIN:MAX".

        Raises:
            ValueError: It is neither, or out of order.
        """
        parts = re.fullmatch(r"(\d{1,4})(?::(\d{1,4}))?", text)
        least, most = (int(parts[1]), int(parts[2] or parts[1])) if parts else (0, 0)
        if not 1 <= least <= most:
            raise ValueError(f"--ray: expected a number of replicas such as 2, or MIN:MAX such as 1:4, got {text!r}")
        return cls(least, most)


class Replica:
    """One engine loop in a process of Ray's."""

    def __init__(self, open_models: OpenModels, threads: int | None, slots: int) -> None:
        """Open the models; the front holds the limits, so none apply here."""
        limits = Limits(seconds=float(_BOUNDLESS), waiting=_BOUNDLESS)
        self._refusal = ""
        try:
            self._engine = EngineLoop(open_models(threads), slots, limits)
        except (ValueError, OSError) as error:  # told by `info`: Ray would try again, and say less
            self._refusal = str(error)

    def check_health(self) -> None:
        """Tell Ray that it must be replaced; RuntimeError where the loop has ended."""
        if not self._refusal and not self._engine.alive:
            raise RuntimeError("the engine loop has ended")

    async def info(self) -> tuple[ModelInfo, dict[str, int]] | str:
        """What it draws, and the cells of a picture by size; why it cannot, where its models do not open."""
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
        """Why the models do not draw a request; None where they do."""
        try:
            await asyncio.to_thread(self._engine.prepare, request)
        except RequestError as error:
            return error
        return None

    async def draw(self, request: DrawRequest) -> AsyncIterator[Event]:
        """Draw one picture: its events. A client that leaves frees its slot."""
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
    """The replicas under Ray Serve. handle: makes calls of them."""

    def __init__(
        self, open_models: OpenModels, scale: Scale, slots: int, seconds: float, gpus: int, address: str | None
    ) -> None:
        """Start the replicas, and wait until the first ones have opened their models.

        Args:
            open_models: How a replica opens them.
            scale: How many replicas.
            slots: Pictures that a replica draws at once.
            seconds: That a replica which Ray retires has to finish what it draws.
            gpus: GPUs of a replica.
            address: Of a Ray cluster; None starts a local one, whose cores the replicas share.

        Raises:
            ValueError: Ray cannot be reached, or the replicas do not start.
        """
        self._own_ray, self._address = not ray.is_initialized(), address
        self._name, self._handles = f"underpaint-{uuid4().hex[:8]}", list[Any]()
        try:
            self._start_ray(scale)
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
            told: tuple[ModelInfo, dict[str, int]] | str = handle.info.remote().result()
            self.draws: Any
            self.draws, self.checks = handle.options(stream=True).draw, handle.check
            self.colours = handle.code_colours
            self._handles = [handle, self.draws, self.checks, self.colours]
        except (RuntimeError, ConnectionError, ValueError, RayError) as error:
            self.end()
            raise ValueError(f"--ray: the replicas did not start: {str(error).strip().splitlines()[-1]}") from error
        if isinstance(told, str):
            self.end()
            raise ValueError(told)
        self.info, self.cells = told

    def _start_ray(self, scale: Scale) -> None:
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
        os.environ.setdefault("GRPC_VERBOSITY", "ERROR")
        quiet: dict[str, Any] = {"log_to_driver": False, "logging_level": logging.ERROR}
        if self._own_ray and self._address is None:
            # The front draws nothing, so the replicas have all cores; more replicas than cores share them.
            ray.init(num_cpus=max(usable_cores(), scale.most), include_dashboard=False, **quiet)
        elif self._own_ray:
            ray.init(address=self._address, **quiet)
        logging.getLogger("ray.serve").setLevel(logging.WARNING)
        serve.start(http_options={"location": "NoServer"}, logging_config={"log_level": "WARNING"})

    def end(self) -> None:
        """Withdraw the application, and end Ray where it was started here."""
        for handle in self._handles:
            handle.shutdown()  # what it does in the background would start Ray again
        if self._own_ray and self._address is None:
            ray.shutdown()
        elif ray.is_initialized():
            with suppress(RayError, RayServeException):  # the cluster may be what failed
                serve.delete(self._name)
            if self._own_ray:
                ray.shutdown()

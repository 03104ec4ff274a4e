"""A race detector for interpreted kernels: accesses of one address that a GPU may order either way.

The interpreter runs the programs of a launch one after another and every operation for all its lanes at once, so a
missing barrier never shows in a result. Here each load and store is kept with its lanes, and what follows is a race,
where one of two accesses at least is a store:

- Two operations of one program reach one address from different threads, without a barrier between them. Lanes of equal
  number in blocks of equal shape are one thread. Several threads hold each lane of a
  block that has fewer lanes than the program has threads.
- One store writes two values to one address.
- Two programs reach one address, without an atomic on a counter that both have passed. Stores of equal values are none.

A reduction is no barrier, for within a warp it compiles to shuffles.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, NamedTuple
from unittest.mock import patch

import numpy as np

from underpaint.algos.arrays import IntArray
from underpaint.runtime.device import interpreter as shortcuts
from underpaint.runtime.device.launch import INTERPRETED

assert INTERPRETED
from triton.runtime import interpreter  # noqa: E402

WARP: Final = 32
MOST_PROGRAMS: Final = 6
"""Programs of a launch that are looked at: the others run the same code on other data."""


class Access(NamedTuple):
    """One load or store of a program: addresses and values by its active lanes, and barriers passed before it."""

    store: bool
    addresses: IntArray
    lanes: IntArray
    shape: tuple[int, ...]
    values: Any
    epoch: int
    line: str


@dataclass(slots=True)
class Program:
    """What one program did: its accesses, and atomics as (accesses before it, counter's address)."""

    accesses: list[Access] = field(default_factory=list)
    atomics: list[tuple[int, int]] = field(default_factory=list)
    epoch: int = 0


@dataclass(slots=True)
class RaceDetector:
    """Looks at the first `most` launches of every kernel and number of threads, and keeps the races that it sees."""

    most: int
    races: list[str] = field(default_factory=list)
    launches: Counter[tuple[str, int]] = field(default_factory=Counter)
    _programs: list[Program] = field(default_factory=list)
    _watching: bool = False

    @contextmanager
    def watch(self) -> Iterator[None]:
        """Look at all launches of this process, within."""
        builder, executor = interpreter.InterpreterBuilder, interpreter.GridExecutor
        patches: list[tuple[Any, str, Callable[..., Any]]] = [
            (builder, "create_masked_load", self._load),
            (builder, "create_masked_store", self._store),
            (builder, "create_atomic_rmw", self._atomic),
            (builder, "create_barrier", self._barrier),
            (builder, "set_grid_idx", self._begin_program),
            (executor, "__call__", self._launch),
        ]
        with ExitStack() as stack:
            for owner, name, replacement in patches:
                stack.enter_context(patch.object(owner, name, _bound(replacement, getattr(owner, name))))
            yield

    def _load(self, right: Any, builder: Any, pointers: Any, mask: Any, *more: Any) -> Any:
        self._note(False, pointers, mask, None)
        return right(builder, pointers, mask, *more)

    def _store(self, right: Any, builder: Any, pointers: Any, value: Any, mask: Any, *more: Any) -> Any:
        self._note(True, pointers, mask, value)
        return right(builder, pointers, value, mask, *more)

    def _atomic(self, right: Any, builder: Any, operation: Any, pointer: Any, *more: Any) -> Any:
        if self._watching:
            program = self._programs[-1]
            program.atomics.append((len(program.accesses), int(np.ravel(pointer.data)[0])))
            program.epoch += 1
        return right(builder, operation, pointer, *more)

    def _barrier(self, right: Any, builder: Any) -> Any:
        if self._watching:
            self._programs[-1].epoch += 1
        return right(builder)

    def _begin_program(self, right: Any, builder: Any, *place: Any) -> Any:
        if self._watching:
            self._programs.append(Program())
        return right(builder, *place)

    def _launch(self, right: Any, executor: Any, *arguments: Any, **named: Any) -> Any:
        name, threads = executor.fn.__name__, WARP * named.get("num_warps", 4)
        self.launches[name, threads] += 1
        if self.launches[name, threads] > self.most:
            return right(executor, *arguments, **named)
        self._programs, self._watching = [], True
        try:
            return right(executor, *arguments, **named)
        finally:
            self._watching = False
            for program in self._programs[:MOST_PROGRAMS]:
                self.races += [f"{name}, {threads} threads: {race}" for race in races_within(program, threads)]
            self.races += [f"{name}: {race}" for race in races_between(self._programs[:MOST_PROGRAMS])]

    def _note(self, store: bool, pointers: Any, mask: Any, value: Any) -> None:
        if not self._watching:
            return
        data = np.asarray(pointers.data)
        lanes = np.flatnonzero(np.broadcast_to(np.asarray(mask.data).reshape(mask.data.shape), data.shape))
        values = None if value is None else np.broadcast_to(np.asarray(value.data), data.shape).ravel()[lanes]
        program = self._programs[-1]
        addresses = data.ravel()[lanes].astype(np.int64)
        program.accesses.append(Access(store, addresses, lanes, data.shape, values, program.epoch, _line()))


def _bound(replacement: Callable[..., Any], right: Callable[..., Any]) -> Callable[..., Any]:
    """A method that is given the right one first."""

    def method(owner: Any, *arguments: Any, **named: Any) -> Any:
        return replacement(right, owner, *arguments, **named)

    return method


def _line() -> str:
    """The line of a kernel that is being interpreted."""
    frame: Any = sys._getframe(2)
    while frame is not None and _is_machinery(frame.f_globals.get("__name__", "")):
        frame = frame.f_back
    return "?" if frame is None else f"{Path(frame.f_code.co_filename).name}:{frame.f_lineno}"


def _is_machinery(module: str) -> bool:
    return module in (__name__, shortcuts.__name__) or module.startswith("triton.")


def races_within(program: Program, threads: int) -> list[str]:
    """Races between the threads of one program, by the lines of both accesses."""
    races = set[str]()
    for access in program.accesses:
        if access.store and np.unique(access.addresses).size < access.addresses.size:
            races |= _two_values(access)
    addresses, places, lanes = _stored_accesses([program])
    if not addresses.size:
        return sorted(races)
    epochs = np.array([access.epoch for access in program.accesses])[places]
    order = np.lexsort((places, epochs, addresses))
    addresses, places, lanes, epochs = addresses[order], places[order], lanes[order], epochs[order]
    edges = np.flatnonzero((np.diff(addresses) != 0) | (np.diff(epochs) != 0)) + 1
    seen = set[tuple[tuple[int, int], ...]]()
    for group in np.split(np.arange(addresses.size), edges):
        if group.size == 1:
            continue
        # Groups of equal places and lanes relative to the first are one finding, not one for every address.
        key = tuple((int(places[at]), int(lanes[at] - lanes[group[0]])) for at in group)
        if key in seen:
            continue
        seen.add(key)
        for later in range(1, group.size):
            for earlier in range(later):
                one, other = (program.accesses[places[group[at]]] for at in (earlier, later))
                if one is other or not (one.store or other.store):
                    continue
                same = lanes[group[earlier]] == lanes[group[later]] and one.shape == other.shape
                shared = np.prod(one.shape, dtype=int) < threads > WARP
                if not same:
                    races.add(f"{_kinds(one, other)} without a barrier from different threads")
                elif shared:
                    races.add(f"{_kinds(one, other)} of a block of fewer lanes than threads")
    return sorted(races)


def races_between(programs: list[Program]) -> list[str]:
    """Races between programs of one launch, by the lines of both accesses."""
    races = set[str]()
    addresses, places, _ = _stored_accesses(programs)
    owners = np.repeat(np.arange(len(programs)), [len(program.accesses) for program in programs])[places]
    starts = np.cumsum([0, *(len(program.accesses) for program in programs)])
    order = np.lexsort((places, addresses))
    addresses, places, owners = addresses[order], places[order], owners[order]
    edges = np.flatnonzero(np.diff(addresses)) + 1
    for group in np.split(np.arange(addresses.size), edges):
        if group.size < 2 or owners[group[0]] == owners[group[-1]]:
            continue
        for later in group[1:]:
            for earlier in group[: np.searchsorted(group, later)]:
                if owners[earlier] == owners[later]:
                    continue
                first, second = programs[owners[earlier]], programs[owners[later]]
                at, then = places[earlier] - starts[owners[earlier]], places[later] - starts[owners[later]]
                one, other = first.accesses[at], second.accesses[then]
                if not (one.store or other.store) or _ordered(first, int(at), second, int(then)):
                    continue
                if one.store and other.store and _value(one, addresses[later]) == _value(other, addresses[later]):
                    continue
                races.add(f"{_kinds(one, other)} of two programs")
    return sorted(races)


def _stored_accesses(programs: list[Program]) -> tuple[IntArray, IntArray, IntArray]:
    """Addresses that are stored to, with every access of them: address, place of the access, lane."""
    accesses = [access for program in programs for access in program.accesses]
    stores = [access.addresses for access in accesses if access.store]
    stored = np.unique(np.concatenate(stores)) if stores else np.empty(0, dtype=np.int64)
    masks = [np.isin(access.addresses, stored) for access in accesses]
    empty = np.empty(0, dtype=np.int64)
    return (
        np.concatenate([empty, *(access.addresses[mask] for access, mask in zip(accesses, masks, strict=True))]),
        np.concatenate([empty, *(np.full(mask.sum(), place) for place, mask in enumerate(masks))]),
        np.concatenate([empty, *(access.lanes[mask] for access, mask in zip(accesses, masks, strict=True))]),
    )


def _two_values(access: Access) -> set[str]:
    _, inverse = np.unique(access.addresses, return_inverse=True)
    order = np.argsort(inverse, kind="stable")
    same = np.diff(inverse[order]) == 0
    values = access.values[order]
    return {f"{access.line} stores two values at one address"} if (values[1:] != values[:-1])[same].any() else set()


def _ordered(first: Program, at: int, second: Program, then: int) -> bool:
    """Whether an atomic after the first access, and one before the second, are on one counter."""
    after = {counter for place, counter in first.atomics if place > at}
    return not after.isdisjoint(counter for place, counter in second.atomics if place <= then)


def _value(access: Access, address: int) -> Any:
    return access.values[access.addresses == address][0]


def _kinds(one: Access, other: Access) -> str:
    first, second = (f"{'store' if access.store else 'load'} at {access.line}" for access in (one, other))
    return f"{first} and {second}"

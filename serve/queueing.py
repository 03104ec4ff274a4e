"""The queue of pictures: first come, first served, with a fair share for each client."""

from __future__ import annotations

import heapq
from collections.abc import Callable
from typing import Generic, NamedTuple, TypeVar

Item = TypeVar("Item")


class _Waiting(NamedTuple, Generic[Item]):
    """A queued item. start: its virtual start time in `FairQueue`. number: its arrival number."""

    start: float
    number: int
    client: str
    cost: float
    item: Item


class FairQueue(Generic[Item]):
    """Start-time fair queueing (Goyal, Vin and Cheng, SIGCOMM 1996): the earliest start time goes first.

    An item starts when the previous item of its client ends, or now if that is later. So clients with few requests are
    served in order of arrival, and a client with many only waits for its own. Not thread-safe.
    """

    def __init__(self) -> None:
        self._heap: list[_Waiting[Item]] = []
        self._ends: dict[str, float] = {}
        self._now = 0.0
        self._arrivals = 0

    def __len__(self) -> int:
        return len(self._heap)

    def push(self, client: str, item: Item, cost: float = 1.0) -> None:
        """Add an item.

        Args:
            client: Name of its client.
            item: The item.
            cost: Its share of a slot's time, in any unit.
        """
        start = max(self._now, self._ends.get(client, 0.0))
        self._ends[client] = start + cost
        self._arrivals += 1
        heapq.heappush(self._heap, _Waiting(start, self._arrivals, client, cost, item))

    @property
    def first(self) -> Item:
        """The next item, which stays queued; raises IndexError if the queue is empty."""
        return self._heap[0].item

    def pop(self) -> Item:
        """Remove and return the next item; raises IndexError if the queue is empty."""
        first = heapq.heappop(self._heap)
        self._now = first.start
        if len(self._ends) > 2 * len(self._heap):  # most of these clients have nothing queued
            # A refund can move a client's end back to the start of an item that it still has in the queue.
            queued = {one.client for one in self._heap}
            self._ends = {client: end for client, end in self._ends.items() if end > self._now or client in queued}
        return first.item

    def remove(self, leaves: Callable[[Item], bool]) -> list[Item]:
        """Remove the items for which `leaves` is true; their cost is refunded to their clients."""
        gone = [one for one in self._heap if leaves(one.item)]
        if gone:
            self._heap = [one for one in self._heap if not leaves(one.item)]
            heapq.heapify(self._heap)
            for one in gone:
                self._ends[one.client] -= one.cost
        return [one.item for one in gone]

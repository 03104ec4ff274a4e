"""Read acceptance logs of serving engines: counts of accepted draft tokens per verification, without distributions.

The common format has one JSON line per request with `spec_decode_acceptance`, as in AIPerf's `profile_export.jsonl`.
Responses of vLLM, SGLang and TensorRT-LLM, and vLLM's Prometheus page, are read too.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

import numpy as np

from underpaint.algos.arrays import IntArray
from underpaint.algos.chance import sampling
from underpaint.algos.step import decode
from underpaint.artifacts.files import read_regular
from underpaint.artifacts.strict_json import JsonError, parse_json, split_lines
from underpaint.sim.batched.decoding import MOST_NODES, make_scheme
from underpaint.sim.report.statistics import Estimate, ratio
from underpaint.sim.synthetic.table_model import TableDrafter, TableModel, TableTarget

RECORD: Final = "spec_decode_acceptance"
"""The key of a request's acceptance counts in AIPerf's records."""
LOGS: Final = (".json", ".jsonl", ".prom", ".txt")
"""File name endings of acceptance logs."""
CANNOT: Final = (
    "draft trees, or other drafts than the chains that were logged",
    "relaxed rules and their bias, or another rule than the engine's",
    "another temperature, or another drafter",
    "where in the picture drafts fail",
    "Jacobi windows, row fronts and MuLo-SD",
)
"""Questions that acceptance counts alone cannot answer."""
_MOST_POSITIONS: Final = 1024
_MOST_COUNT: Final = 1 << 40
"""Largest count in a log; sums of all positions stay within 64 bits."""
_NAMES: Final[Mapping[str, tuple[str, ...]]] = {
    "histogram": ("acceptance_histogram", "spec_correct_drafts_histogram", "spec_accept_histogram"),
    "steps": ("num_spec_steps", "spec_verify_ct"),
    "accepted": ("num_accepted_draft_tokens", "total_accepted_draft_tokens", "spec_num_correct_drafts"),
    "drafted": ("num_draft_tokens", "total_draft_tokens", "spec_num_proposed_drafts"),
    "limit": ("num_spec_tokens",),
}
"""Names of each count in vLLM and AIPerf, in TensorRT-LLM, and in SGLang."""
_PROMETHEUS: Final = re.compile(
    r"^vllm:spec_decode_num_(drafts|draft_tokens|accepted_tokens_per_pos)(?:_total)?(?:\{([^}]*)\})?\s+([0-9.eE+]+)\s*$",
    re.MULTILINE,
)


@dataclass(frozen=True, slots=True, eq=False)
class AcceptanceLog:
    """Acceptance counts of the R requests of a log.

    Attributes:
        engine: The engine that wrote the log.
        histograms: `[R, K + 1]` int64, number of verifications of each request that accepted 0 to K draft tokens.
        drafted: `[R]` int64, number of draft tokens; -1 where the log does not say.
        skipped: Number of requests in the file without acceptance counts.
    """

    engine: str
    histograms: IntArray
    drafted: IntArray
    skipped: int = 0

    @property
    def positions(self) -> int:
        """K, the length of the longest draft."""
        return int(self.histograms.shape[1]) - 1

    @property
    def steps(self) -> IntArray:
        """[R] number of verifications."""
        steps: IntArray = self.histograms.sum(axis=1)
        return steps

    def reached(self, position: int) -> IntArray:
        """[R] number of verifications that accepted at least `position` draft tokens."""
        counts: IntArray = self.histograms[:, position:].sum(axis=1)
        return counts

    def acceptance(self, position: int) -> Estimate:
        """Acceptance rate at a position (from 1), given that all earlier draft tokens were accepted; 0 without data."""
        tried = self.reached(position - 1)
        return ratio(self.reached(position), tried) if tried.any() else Estimate(0.0, 0.0, 0.0)

    def tokens_per_cycle(self, length: int) -> Estimate:
        """Tokens per cycle with chains of `length`: the accepted tokens of the log's chains cut to it, plus one."""
        accepted = sum(self.reached(position) for position in range(1, length + 1))
        return ratio(self.steps + accepted, self.steps)


def read_acceptance(path: Path) -> AcceptanceLog:
    """Read an acceptance log.

    Raises:
        ValueError: The file is missing or has no acceptance counts, its counts disagree, or its drafts were trees.
        OSError: The file cannot be read.
    """
    if not path.exists():
        raise ValueError(f"{path}: expected a trace (.npz) or an acceptance log ({', '.join(LOGS)}), got no file")
    try:
        return _log_of(list(_records(read_regular(path))))
    except ValueError as error:
        raise ValueError(
            f"{path}: expected an acceptance log of vLLM, SGLang, TensorRT-LLM or AIPerf: {error}; see "
            "docs/how-to/trace-your-own-model.md"
        ) from error


def _records(content: bytes) -> Iterator[tuple[int, Mapping[str, Any] | None]]:
    """Yield the number and the acceptance counts, or None, of each line or of each item of a JSON list."""
    try:
        text = content.decode()
    except UnicodeDecodeError as error:
        raise ValueError("it is no text") from error
    if text.lstrip().startswith(("#", "vllm:")):
        yield 1, _prometheus(text)
        return
    try:
        whole = parse_json(text)
        items = whole if isinstance(whole, list) else [whole]
    except JsonError:
        lines = enumerate(split_lines(content), start=1)
        items = [parse_json(line, f"line {number}") for number, line in lines if line.strip()]
    for number, item in enumerate(items, start=1):
        metadata = item.get("metadata") if isinstance(item, dict) else None
        warmup = isinstance(metadata, dict) and metadata.get("benchmark_phase") == "warmup"
        records: list[Mapping[str, Any] | None] = [] if warmup else list(_counted(item))
        yield from ((number, one) for one in records or [None])


def _counted(value: Any) -> Iterator[Mapping[str, Any]]:
    """Yield the objects with a histogram of accepted draft tokens, at any depth of an engine's response."""
    if isinstance(value, dict):
        if any(name in value for name in _NAMES["histogram"]):
            yield value
            return
        value = list(value.values())
    if isinstance(value, list):
        for part in value:
            yield from _counted(part)


def _prometheus(text: str) -> Mapping[str, Any] | None:
    """Read the counts of all requests since the server started from vLLM's /metrics page."""
    totals: Counter[str] = Counter()
    for name, labels, value in _PROMETHEUS.findall(text):
        position = re.search(r'position="(\d+)"', labels)
        count = float(value)
        if not 0.0 <= count <= _MOST_COUNT:
            raise ValueError(f"{name}: expected a count from 0 to {_MOST_COUNT:,}, got {value}")
        totals[position[1] if position else name] += int(count)
    drafts, drafted = totals.pop("drafts", 0), totals.pop("draft_tokens", 0)
    if not drafts:
        return None
    counts = [drafts, *(totals[str(position)] for position in range(len(totals))), 0]
    return {
        "acceptance_histogram": [more - less for more, less in pairwise(counts)],
        "num_draft_tokens": drafted,
    }


def _log_of(records: list[tuple[int, Mapping[str, Any] | None]]) -> AcceptanceLog:
    counted_records = [(number, one) for number, one in records if one is not None]
    read = [one for one in (_read(number, record) for number, record in counted_records) if one[0].sum()]
    if not read:
        raise ValueError(f"none of its {len(records)} requests has acceptance counts")
    longest = max(histogram.size for histogram, _ in read)
    histograms = np.stack([np.pad(histogram, (0, longest - histogram.size)) for histogram, _ in read])
    return AcceptanceLog(
        _engine(counted_records[0][1]), histograms, np.array([most for _, most in read]), len(records) - len(read)
    )


def _engine(record: Mapping[str, Any]) -> str:
    usual = "sglang" if "spec_verify_ct" in record else "tensorrt_llm" if "total_draft_tokens" in record else "vllm"
    return str(record.get("engine", usual))


def _read(number: int, record: Mapping[str, Any]) -> tuple[IntArray, int]:
    """The histogram [K + 1] and the number of draft tokens, or -1, of a request; ValueError if its counts disagree."""
    where = f"request {number}"
    values = {
        kind: next((record[name] for name in names if record.get(name) is not None), None)
        for kind, names in _NAMES.items()
    }
    counts: Any = values["histogram"]
    if isinstance(counts, dict):
        pairs = [(key, value) for key, value in counts.items() if str(key).isascii() and str(key).isdigit()]
        largest = max((int(key) for key, _ in pairs), default=0)
        dense: list[Any] = [0] * (min(largest, _MOST_POSITIONS) + 1) if len(pairs) == len(counts) else [None]
        for key, value in pairs:
            dense[min(int(key), len(dense) - 1)] = value
        counts = dense
    whole = isinstance(counts, list) and all(
        isinstance(one, int) and not isinstance(one, bool) and 0 <= one <= _MOST_COUNT for one in counts
    )
    if not whole or not 0 < len(counts) <= _MOST_POSITIONS:
        raise ValueError(
            f"{where}: expected a histogram of whole numbers from 0 to {_MOST_COUNT:,}, got "
            f"{str(values['histogram'])[:60]}"
        )
    steps, accepted = sum(counts), sum(place * count for place, count in enumerate(counts))
    drafted = values["drafted"] if isinstance(values["drafted"], int) else -1
    for kind, expected in (("steps", steps), ("accepted", accepted)):
        if values[kind] is not None and values[kind] != expected:
            raise ValueError(f"{where}: expected {expected} {kind}, as its histogram says, got {values[kind]}")
    if drafted > _MOST_POSITIONS * _MOST_COUNT:
        raise ValueError(f"{where}: expected at most {_MOST_POSITIONS * _MOST_COUNT:,} draft tokens, got {drafted}")
    if 0 <= drafted < accepted:
        raise ValueError(
            f"{where}: expected at most {drafted} accepted tokens, as many as were drafted, got {accepted}"
        )
    limit = values["limit"] if isinstance(values["limit"], int) and 0 < values["limit"] < _MOST_POSITIONS else 0
    if limit and steps and drafted > steps * limit:
        raise ValueError(
            f"{where}: its drafts had {drafted / steps:.1f} tokens and at most {limit} levels: they were trees, and "
            "counts of accepted levels say nothing of other trees; bring a trace instead"
        )
    return np.array([*counts, *[0] * (limit + 1 - len(counts))], dtype=np.int64), drafted


def acceptance_of(model: TableModel, length: int, seed: int = 0, *, greedy: bool = False) -> AcceptanceLog:
    """Decode every image of a model once with lossless chains of `length` tokens, and count accepted tokens.

    Args:
        model: A replayed trace, or a synthetic model.
        length: Draft tokens per cycle, >= 1; fewer at the end of an image.
        seed: Seed of the noise.
        greedy: Whether to decode at temperature 0.

    Raises:
        ValueError: The model has no drafter.
    """
    scheme = make_scheme(model, *(("chain_top1", "greedy") if greedy else ("chain", "chain")), {"length": length})
    histograms, drafted = np.zeros((model.images, length + 1), dtype=np.int64), np.zeros(model.images, dtype=np.int64)
    for image in range(model.images):
        target, drafter = TableTarget(model, image), TableDrafter(model, image)
        cycles = decode(target, drafter, scheme.policy, scheme.rule, sampling(seed, image), MOST_NODES).cycles[1:]
        accepted = [len(cycle.verdict.path) for cycle in cycles]
        histograms[image] = np.bincount(accepted, minlength=length + 1)
        drafted[image] = sum(cycle.tree.size - 1 for cycle in cycles)
    return AcceptanceLog("underpaint", histograms, drafted)


def aiperf_lines(log: AcceptanceLog) -> bytes:
    """Convert a log to AIPerf's records: one JSON line per request."""
    lines = []
    for request, (histogram, drafted) in enumerate(zip(log.histograms.tolist(), log.drafted.tolist(), strict=True)):
        steps, accepted = sum(histogram), sum(place * count for place, count in enumerate(histogram))
        rate = {"draft_acceptance_rate": accepted / drafted if drafted else 0.0, "num_draft_tokens": drafted}
        record = {
            "engine": log.engine,
            "mean_acceptance_length": 1.0 + accepted / steps,
            "acceptance_histogram": {str(place): count for place, count in enumerate(histogram) if count},
            "num_accepted_draft_tokens": accepted,
            **(rate if drafted >= 0 else {}),
            "num_spec_steps": steps,
            "num_spec_tokens": log.positions,
            "completion_tokens": accepted + steps,
        }
        metadata = {"session_num": request, "benchmark_phase": "profiling"}
        lines.append(json.dumps({"metadata": metadata, "metrics": {}, RECORD: record}))
    return ("\n".join(lines) + "\n").encode()

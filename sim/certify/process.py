"""Verifiers that are programs in any language: each gets a draft as a JSON line and replies with a JSON line."""

import json
import os
import selectors
import signal
import subprocess
import tempfile
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from typing import Any, Self

from underpaint.algos.arrays import FloatArray
from underpaint.algos.tree import Verdict
from underpaint.artifacts.strict_json import parse_json
from underpaint.sim.certify.adapters import read_decision
from underpaint.sim.certify.case import DraftRequest
from underpaint.sim.certify.verifier import Fault, Noise, Verifier, VerifierStopped

LONGEST_LINE = 1 << 20
"""Largest number of bytes in a reply; the longest path and its token take a few hundred."""
BATCH = 256
"""Number of lines that are sent before waiting for replies."""


class ProcessVerifier(Verifier):
    """A program that reads drafts from standard input and writes decisions to standard output, in order.

    Input line: {"id", "tokens" [N], "parents" [N], "drawn", "draft_probs" [N, V], "target_probs" [N, V], "raw_probs"
    [N, V], and "uniforms" [N + 1] or "seed"}. Output line: {"id", "path", "token"}, or {"id", "error"}. The program
    must flush after each line. After `timeout` seconds without a reply, it counts as hung.
    Raises ValueError if the program cannot be started.
    """

    def __init__(
        self, command: Sequence[str], noise: Noise = "uniforms", timeout: float = 10.0, bits: int = 53
    ) -> None:
        if not command:
            raise ValueError(
                "--as process: expected a command line, got an empty one; name a program and its arguments"
            )
        self.command, self.noise, self.timeout, self.bits = list(command), noise, timeout, bits
        self._next = 0
        self._start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def decide(self, drafts: Sequence[DraftRequest], noise: FloatArray) -> list[Verdict | Fault]:
        decisions: list[Verdict | Fault] = []
        for start in range(0, len(drafts), BATCH):
            decisions += self._batch(drafts[start : start + BATCH], noise[start : start + BATCH], start)
        return decisions

    def close(self) -> None:
        """End the program, and what it started: a wrapper's child would keep the pipes open."""
        if self._errors.closed:
            return
        with suppress(ProcessLookupError, PermissionError):  # all of them have ended
            os.killpg(self._child.pid, signal.SIGKILL)
        self._child.wait()
        for stream in (self._child.stdin, self._child.stdout, self._errors):
            if stream is not None:
                with suppress(BrokenPipeError):
                    stream.close()

    def _start(self) -> None:
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115 - it lives as long as the program
        try:
            self._child = subprocess.Popen(
                self.command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self._errors,
                start_new_session=True,  # only this process handles Ctrl-C, and ends all of it
            )
        except OSError as error:
            self._errors.close()
            raise ValueError(
                f"--as process: {self.command[0]!r} cannot be started: {error}; name a program, with its path"
            ) from error
        self._left = b""

    def _batch(self, drafts: Sequence[DraftRequest], noise: FloatArray, offset: int) -> list[Verdict | Fault]:
        if self._child.poll() is not None:
            self.close()
            self._start()
        first = self._next
        self._next += len(drafts)
        lines = [
            json.dumps(self._question(first + place, draft, row))
            for place, (draft, row) in enumerate(zip(drafts, noise, strict=True))
        ]
        writer = threading.Thread(target=self._write, args=(("\n".join(lines) + "\n").encode(),), daemon=True)
        writer.start()
        decisions: list[Verdict | Fault] = []
        for place in range(len(drafts)):
            try:
                line = self._read_line()
            except VerifierStopped as stopped:
                raise VerifierStopped(stopped.fault, offset + place) from None
            decisions.append(_decision(line, first + place))
        writer.join(self.timeout)
        if writer.is_alive():  # the program writes without reading its input
            self.close()
            fault = Fault("hang", f"it read no more of its input within {self.timeout:g} s")
            raise VerifierStopped(fault, offset + len(drafts) - 1)
        return decisions

    def _question(self, number: int, draft: DraftRequest, noise: FloatArray) -> dict[str, Any]:
        tree = draft.tree
        noise_fields = {"seed": int(noise[0])} if self.noise == "seeds" else {"uniforms": noise.tolist()}
        return {
            "id": number,
            "tokens": tree.tokens.tolist(),
            "parents": tree.parents.tolist(),
            "drawn": tree.drawn,
            "draft_probs": tree.draft_probs.tolist(),
            "target_probs": draft.target_probs.tolist(),
            "raw_probs": draft.raw_probs.tolist(),
            **noise_fields,
        }

    def _write(self, content: bytes) -> None:
        assert self._child.stdin is not None
        try:
            self._child.stdin.write(content)
            self._child.stdin.flush()
        except (BrokenPipeError, ValueError, OSError):
            return  # the reader sees the end of the program

    def _read_line(self) -> bytes:
        assert self._child.stdout is not None
        until = time.monotonic() + self.timeout
        with selectors.DefaultSelector() as ready:
            ready.register(self._child.stdout, selectors.EVENT_READ)
            while b"\n" not in self._left:
                remaining = until - time.monotonic()
                if remaining <= 0.0 or not ready.select(remaining):
                    self.close()
                    raise VerifierStopped(Fault("hang", f"no line within {self.timeout:g} s"))
                if len(self._left) > LONGEST_LINE:
                    self.close()
                    raise VerifierStopped(Fault("bad reply", f"a line of more than {LONGEST_LINE:,} bytes"))
                more = os.read(self._child.stdout.fileno(), 1 << 16)
                if not more:
                    try:
                        code = self._child.wait(self.timeout)
                    except subprocess.TimeoutExpired:
                        self.close()
                        detail = f"it closed its output and did not end within {self.timeout:g} s"
                        raise VerifierStopped(Fault("hang", detail)) from None
                    self._errors.seek(0)
                    last = self._errors.read().decode(errors="replace").strip().splitlines()[-1:]
                    error_text = f": {last[0]}" if last else ""
                    raise VerifierStopped(Fault("crash", f"the program ended with code {code}{error_text}"))
                self._left += more
        line, _, self._left = self._left.partition(b"\n")
        return line


def _decision(line: bytes, number: int) -> Verdict | Fault:
    try:
        reply = parse_json(line)
    except ValueError:
        return Fault("bad reply", f"expected a JSON line, got {line!r:.200}")
    if not isinstance(reply, dict) or reply.get("id") != number:
        return Fault("bad reply", f"expected a reply to id {number}, got {reply!r:.200}")
    if "error" in reply:
        return Fault("crash", str(reply["error"])[:200])
    return read_decision((reply.get("path"), reply.get("token")))

"""Run a verifier in a separate process, so that a crash or a hang is a finding and does not stop the test."""

import multiprocessing
import os
import shlex
import signal
import threading
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from multiprocessing.connection import Connection
from typing import Any, Self

from underpaint.algos.accept import RULES
from underpaint.algos.arrays import FloatArray
from underpaint.algos.plugins import load_plugins, loaded_plugins
from underpaint.algos.tree import Verdict
from underpaint.sim.certify.adapters import GALLERY, RULE, Spec, interface_of, open_verifier
from underpaint.sim.certify.case import DraftRequest, Tokens, VerifierCase
from underpaint.sim.certify.layouts import LAYOUTS
from underpaint.sim.certify.process import ProcessVerifier
from underpaint.sim.certify.verifier import Fault, Verifier, VerifierStopped

STARTUP_SECONDS = 120.0
"""Time limit for importing the verifier's module."""
BATCH = 8
"""Number of drafts in a call of a batched kernel; so few that a slow kernel does not count as hung."""


class IsolatedVerifier(Verifier):
    """The verifier that a spec names, in a child process that is restarted after a crash or a hang. A call that takes
    more than `timeout` seconds counts as hung. Raises ValueError if the spec names no verifier.
    """

    def __init__(self, spec: Spec, timeout: float = 10.0) -> None:
        self.spec, self.timeout = spec, timeout
        self._context = multiprocessing.get_context("spawn")
        self._at = self._context.Value("q", 0, lock=False)  # the child writes it while this process waits
        self._start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def decide(self, drafts: Sequence[DraftRequest], noise: FloatArray) -> list[Verdict | Fault]:
        try:
            decisions: list[Verdict | Fault] = self._ask(("decide", noise, list(drafts)))
            return decisions
        except VerifierStopped as stopped:
            # A batch that crashed is asked again draft by draft, to name the right one. One that hangs is not.
            if stopped.item is None or stopped.fault.kind == "hang" or _batch_of(self.spec) == 1:
                raise
            for at in range(stopped.item, min(stopped.item + BATCH, len(drafts))):
                try:
                    self._ask(("decide", noise[at : at + 1], [drafts[at]]))
                except VerifierStopped as alone:
                    raise VerifierStopped(alone.fault, at) from None
            raise

    def enumerate(self, draft: DraftRequest) -> dict[Verdict, float] | Fault:
        shares: dict[Verdict, float] | Fault = self._ask(("enumerate", draft))
        return shares

    def enumerate_run(self, case: VerifierCase, cycles: int) -> dict[Tokens, float] | Fault:
        shares: dict[Tokens, float] | Fault = self._ask(("enumerate_run", case, cycles))
        return shares

    def run(self, case: VerifierCase, cycles: int, noise: FloatArray) -> list[Tokens | Fault]:
        runs: list[Tokens | Fault] = self._ask(("run", noise, case, cycles))
        return runs

    def close(self) -> None:
        """End the child process."""
        self._child.kill()
        self._child.join()
        self._connection.close()

    def _start(self) -> None:
        self._connection, other = self._context.Pipe()
        arguments = (self.spec, other, self._at, loaded_plugins())
        self._child = self._context.Process(target=_serve, args=arguments, daemon=True)
        with _ignoring_interrupts():
            self._child.start()
        other.close()
        try:
            if not self._connection.poll(STARTUP_SECONDS):
                raise ValueError(f"verifier {self.spec.target!r}: importing it took more than {STARTUP_SECONDS:.0f} s")
            reply = self._connection.recv()
        except EOFError:
            self._child.join()
            raise ValueError(
                f"verifier {self.spec.target!r}: importing it ended the process with code {self._child.exitcode}"
            ) from None
        except BaseException:
            self.close()
            raise
        if isinstance(reply, str):
            self.close()
            raise ValueError(reply)
        self.noise, self.bits = reply

    def _ask(self, question: tuple[Any, ...]) -> Any:
        if not self._child.is_alive():
            self._start()
        seen = self._at.value = 0
        try:
            self._connection.send(question)
            while not self._connection.poll(self.timeout):
                if self._at.value == seen:
                    self.close()
                    raise VerifierStopped(Fault("hang", f"no answer within {self.timeout:g} s"), seen)
                seen = self._at.value
            reply = self._connection.recv()
        except (EOFError, BrokenPipeError, ConnectionResetError):
            self._child.join()
            code = self._child.exitcode
            raise VerifierStopped(Fault("crash", f"the process ended with code {code}"), self._at.value) from None
        if isinstance(reply, VerifierStopped):
            raise reply
        return reply


def open_isolated(spec: Spec, timeout: float) -> AbstractContextManager[Verifier]:
    """Open the verifier that a spec names, for use in a `with` statement. Raises ValueError if there is none.

    Third-party code, including plug-in rules, runs in a separate process; the gallery and this project's rules do not.
    """
    if spec.interface == "process":
        try:
            command = shlex.split(spec.target)
        except ValueError as error:
            raise ValueError(
                f"--as process: expected a command line as a shell reads it, got {spec.target!r}: {error}; close it"
            ) from error
        return ProcessVerifier(command, "seeds" if spec.seeds else "uniforms", timeout, spec.bits or 53)
    if spec.target.startswith(GALLERY) or _is_own_rule(spec):
        return nullcontext(open_verifier(spec))
    return IsolatedVerifier(spec, timeout)


def _is_own_rule(spec: Spec) -> bool:
    """Whether a spec names a rule of this project. Raises ValueError if it names an unknown rule."""
    if not spec.target.startswith(RULE):
        return False
    return RULES[spec.target.removeprefix(RULE)].make.__module__.partition(".")[0] == __name__.partition(".")[0]


@contextmanager
def _ignoring_interrupts() -> Iterator[None]:
    """Let child processes started here ignore Ctrl-C; this process handles it and ends them."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def _batch_of(spec: Spec) -> int:
    """Return how many drafts a verifier gets in one call."""
    interface = interface_of(spec)
    return BATCH if interface in LAYOUTS and LAYOUTS[interface].batched else 1


def _serve(spec: Spec, connection: Connection, at: Any, plugins: tuple[str, ...]) -> None:
    os.dup2(2, 1)  # send a verifier's prints to standard error, to keep them out of the report on standard output
    try:
        load_plugins(plugins)
        verifier = open_verifier(spec)
    except ValueError as error:
        connection.send(str(error))
        return
    connection.send((verifier.noise, verifier.bits))
    batch = _batch_of(spec)
    while True:
        try:
            question, *arguments = connection.recv()
        except EOFError:
            return
        try:
            if question.startswith("enumerate"):
                connection.send(getattr(verifier, question)(*arguments))
                continue
            noise, first, *rest = arguments
            answers: list[Any] = []
            for start in range(0, len(noise), batch):
                at.value = start
                rows = slice(start, start + batch)
                if question == "run":
                    answers += verifier.run(first, rest[0], noise[rows])
                else:
                    answers += verifier.decide(first[rows], noise[rows])
            connection.send(answers)
        except VerifierStopped as stopped:
            connection.send(stopped if batch > 1 else VerifierStopped(stopped.fault, at.value))

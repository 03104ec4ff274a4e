"""Turn callables into verifiers: find a function by name, call it, and validate what it returns."""

import importlib
import importlib.util
import inspect
import operator
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, Final, Literal, TypeAlias, get_args

from underpaint.algos.accept import RULES
from underpaint.algos.arrays import FloatArray
from underpaint.algos.chance import At, Enumerating, Role, enumerate_outcomes
from underpaint.algos.plugin_guard import PluginError
from underpaint.algos.registry import build, suggest
from underpaint.algos.tree import DRAWN, Drawn, Verdict, emitted
from underpaint.sim.certify.case import ROOT_TOKEN, DraftRequest, Tokens, VerifierCase
from underpaint.sim.certify.layouts import LAYOUTS
from underpaint.sim.certify.measure import EXACT
from underpaint.sim.certify.mistakes import BY_NAME, RIGHT
from underpaint.sim.certify.noise import NoiseExhausted
from underpaint.sim.certify.session_mistakes import RIGHT_SESSION, SESSIONS
from underpaint.sim.certify.sessions import SessionVerifier
from underpaint.sim.certify.token_wise import TokenWiseWalk, WalkOfDraft
from underpaint.sim.certify.verifier import Fault, Noise, Verifier, find_fault

Interface: TypeAlias = Literal[
    "function", "seeded", "session", "rule", "process",
    "eagle", "sglang", "flashinfer", "vllm", "vllm-block", "tensorrt-llm", "transformers",
]  # fmt: skip
"""How a verifier is called; see `docs/how-to/certify-a-verifier.md`."""
INTERFACES: Final[tuple[Interface, ...]] = get_args(Interface)
GALLERY: Final = "gallery:"
RULE: Final = "rule:"
COVERED: Final[dict[str, frozenset[Drawn]]] = {
    "eagle": frozenset({"top_k"}),
    "sglang": frozenset({"top_k", "without_replacement"}),
    "session": frozenset({"iid"}),
    **{name: frozenset({"iid"}) for name, layout in LAYOUTS.items() if layout.chain},
}
"""The kinds of trees that an interface supports. Target-only sampling needs siblings that differ. Chains and sessions
need draft tokens that are drawn from the reported draft distributions."""


@dataclass(frozen=True, slots=True)
class Spec:
    """The name of a verifier and how to call it. All values are plain, so files and other processes can use a spec.

    Attributes:
        target: "module:function", "file.py:function", "gallery:NAME", "rule:NAME", or for "process" a command line.
        interface: How the verifier is called.
        seeds: Whether a process gets a seed and draws its own noise, instead of uniforms.
        bits: Requested precision, see `Verifier`; None measures it.
        settings: Keyword arguments of the function or the rule.

    Raises:
        ValueError: Values that do not fit together.
    """

    target: str
    interface: Interface = "function"
    seeds: bool = False
    bits: int | None = None
    settings: tuple[tuple[str, float], ...] = ()

    def __post_init__(self) -> None:
        if self.interface not in INTERFACES:
            raise ValueError(f"--as: expected one of {', '.join(INTERFACES)}, got {self.interface!r}")
        if self.seeds and self.interface != "process":
            raise ValueError("--own-seed is for --as process; a Python function that takes a seed is --as seeded")
        if self.target.startswith((GALLERY, RULE)) and self.interface != "function":
            raise ValueError(f"--as: {self.target} says itself how it is called; leave the option out")
        if self.bits is not None and self.bits not in EXACT:
            raise ValueError(f"--bits: expected one of {', '.join(map(str, EXACT))}, got {self.bits}")
        if self.settings and (self.interface == "process" or self.target.startswith(GALLERY)):
            raise ValueError("--promise: a setting is a keyword argument of a function or a rule; leave it out here")

    def check_drawn(self, drawn: Drawn) -> None:
        """Raise ValueError if the verifier does not support trees drawn this way."""
        if self.target.startswith(RULE):
            RULES[self.target.removeprefix(RULE)].check_covers(drawn)
            return
        mistake = BY_NAME.get(self.target.removeprefix(GALLERY)) if self.target.startswith(GALLERY) else None
        covered = mistake.drawn if mistake is not None else COVERED.get(interface_of(self), frozenset(DRAWN))
        if drawn not in covered:
            raise ValueError(f"--drawn: {self.target} is judged on {' or '.join(sorted(covered))} trees, not '{drawn}'")


@dataclass(frozen=True, slots=True)
class CallableVerifier(Verifier):
    """A function called once per draft: `verify(draft, uniforms)` or `verify(draft, seed)` returns (path, token)."""

    verify: Callable[..., Any]
    noise: Noise = "uniforms"
    bits: int = 53

    def decide(self, drafts: Sequence[DraftRequest], noise: FloatArray) -> list[Verdict | Fault]:
        noises = [int(seed) for seed in noise[:, 0]] if self.noise == "seeds" else list(noise.copy())
        return [guarded(partial(self.verify, copied(draft), one)) for draft, one in zip(drafts, noises, strict=True)]


@dataclass(frozen=True, slots=True)
class WalkVerifier(Verifier):
    """A token-wise walk that caches its distributions for every draft it has seen."""

    walk: TokenWiseWalk
    walks: dict[int, WalkOfDraft] = field(default_factory=dict, init=False)

    def decide(self, drafts: Sequence[DraftRequest], noise: FloatArray) -> list[Verdict | Fault]:
        return [guarded(partial(self._of(draft).decide, row)) for draft, row in zip(drafts, noise, strict=True)]

    def _of(self, draft: DraftRequest) -> WalkOfDraft:
        draft_walk = self.walks.get(id(draft))
        if draft_walk is None:
            draft_walk = self.walks[id(draft)] = WalkOfDraft(self.walk, draft)
        return draft_walk


@dataclass(frozen=True, slots=True)
class RuleVerifier(Verifier):
    """An acceptance rule with this project's interface, `rule(tree, probs, chance)`; its decisions are enumerated."""

    rule: Callable[..., Any]
    noise: Noise = field(default="decisions", init=False)

    def enumerate(self, draft: DraftRequest) -> dict[Verdict, float] | Fault:
        outcomes = enumerate_outcomes(partial(self._decide, draft))
        verdicts = {verdict: share for verdict, share in outcomes.items() if isinstance(verdict, Verdict)}
        return next((fault for fault in outcomes if isinstance(fault, Fault)), verdicts)

    def _decide(self, draft: DraftRequest, chance: Enumerating) -> Verdict | Fault:
        clone = copied(draft)
        return guarded(partial(self.rule, clone.tree, clone.target_probs, chance))

    def enumerate_run(self, case: VerifierCase, cycles: int) -> dict[Tokens, float] | Fault:
        def program(chance: Enumerating) -> Tokens | Fault:
            tokens: Tokens = ()
            for cycle in range(cycles):
                cycle_chance = chance.cycle(cycle)
                drafted: Tokens = (ROOT_TOKEN,)
                for node in range(1, len(case.parents)):
                    drafted += (cycle_chance.draw(case.offered(node, drafted, tokens), At(Role.DRAFT, node)),)
                draft = case.draft_of(drafted, tokens)
                verdict = self._decide(draft, cycle_chance)
                if isinstance(verdict, Fault):
                    return verdict
                if (fault := find_fault(draft, verdict)) is not None:
                    return fault
                tokens += emitted(draft.tree, verdict)
            return tokens

        outcomes = enumerate_outcomes(program)
        runs = {tokens: share for tokens, share in outcomes.items() if not isinstance(tokens, Fault)}
        return next((fault for fault in outcomes if isinstance(fault, Fault)), runs)


def copied(draft: DraftRequest) -> DraftRequest:
    """A draft with copied tokens and distributions, so that a verifier may write into them."""
    tree = replace(draft.tree, tokens=draft.tree.tokens.copy(), draft_probs=draft.tree.draft_probs.copy())
    return DraftRequest(tree, draft.target_probs.copy(), draft.raw_probs.copy(), draft.allowed.copy())


def guarded(call: Callable[[], Any]) -> Verdict | Fault:
    """The decision that a call returns; a fault if it raises an error or returns anything else."""
    try:
        reply = call()
    except PluginError as error:
        return Fault("crash", str(error))
    except NoiseExhausted as error:
        return Fault("noise", str(error))
    except (Exception, KeyboardInterrupt) as error:  # whatever a verifier raises is a finding
        return Fault("crash", ": ".join(filter(None, (type(error).__name__, str(error)))))
    return read_decision(reply)


def read_decision(reply: Any) -> Verdict | Fault:
    """Read (path, token), all integers, as a decision; anything else is a fault."""
    try:
        path, token = reply
        return Verdict(tuple(operator.index(node) for node in path), operator.index(token))
    except (TypeError, ValueError):
        return Fault("bad reply", f"expected (path, token): accepted nodes and one token, got {reply!r:.200}")


ARGUMENTS: Final[dict[str, tuple[str, ...]]] = {
    "function": ("draft", "uniforms"),
    "seeded": ("draft", "seed"),
    "session": ("models",),
    "rule": ("tree", "probs", "chance"),
}
"""Positional arguments of a verifier, by interface; interfaces in `layouts` use keywords instead."""


def check_signature(target: str, verify: Callable[..., Any], interface: Interface) -> None:
    """Raise ValueError if a callable cannot take a verifier's arguments. It is not called."""
    if interface not in ARGUMENTS:
        return
    expected = ARGUMENTS[interface]
    try:
        signature = inspect.signature(verify)
    except (TypeError, ValueError):
        return  # written in C without a signature: its first call is checked instead
    try:
        signature.bind(*expected)
    except TypeError as error:
        raise ValueError(
            f"verifier {target!r}: --as {interface} expects a function of ({', '.join(expected)}), got one of "
            f"{signature}; name another function, or the layout that it takes with --as"
        ) from error


def with_whole_path(target: str) -> str:
    """Make the path in "file.py:function" absolute, so that any folder works; return other targets unchanged."""
    place, colon, name = target.rpartition(":")
    return f"{Path(place).resolve()}:{name}" if colon and place.endswith(".py") else target


def find_callable(target: str) -> Callable[..., Any]:
    """Import the function named by "module:function" or "file.py:function". Raises ValueError if it is missing."""
    place, colon, name = target.rpartition(":")
    if not colon or not place or not name:
        raise ValueError(f"verifier {target!r}: expected module:function or file.py:function")
    if place.partition(".")[0] in sys.stdlib_module_names:
        raise ValueError(f"verifier {target!r}: {place} is Python's own module; name a verifier of yours")
    if place.endswith(".py"):
        path = Path(place).resolve()
        if not path.is_file():
            raise ValueError(f"verifier {target!r}: there is no file {place}")
        spec = importlib.util.spec_from_file_location(f"underpaint_verifier_{path.stem}", path)
        if spec is None or spec.loader is None:
            raise ValueError(f"verifier {target!r}: {place} cannot be loaded as a Python module")
        module = importlib.util.module_from_spec(spec)
        sys.modules[spec.name] = module
        try:
            spec.loader.exec_module(module)
        except Exception as error:
            raise ValueError(f"verifier {target!r}: {place} raised {type(error).__name__}: {error}") from error
    else:
        try:
            module = importlib.import_module(place)
        except Exception as error:
            raise ValueError(
                f"verifier {target!r}: importing {place} raised {type(error).__name__}: {error}"
            ) from error
    function: Callable[..., Any] | None = getattr(module, name, None)
    if function is None or not callable(function):
        names = [one for one in vars(module) if callable(getattr(module, one)) and not one.startswith("_")]
        raise ValueError(f"verifier {target!r}: {place} has no function '{name}'; {suggest(name, names)}")
    return function


def open_verifier(spec: Spec) -> Verifier:
    """Open the verifier that a spec names, in this process. Raises ValueError if there is none."""
    if spec.target.startswith(GALLERY):
        return _of_the_gallery(spec.target.removeprefix(GALLERY))
    settings = dict(spec.settings)
    if spec.target.startswith(RULE):
        rule = RULES[spec.target.removeprefix(RULE)]
        if rule.codebook or rule.embeddings:
            raise ValueError(
                f"rule '{rule.name}' needs a codebook, which these cases have none of; `underpaint exact "
                f"{rule.name}` gives its exact bias"
            )
        return RuleVerifier(build(rule.make, settings, f"rule '{rule.name}'"))
    verify = find_callable(spec.target)
    if settings:
        verify = partial(verify, **settings)
    check_signature(spec.target, verify, spec.interface)
    return verifier_of(verify, spec.interface, spec.bits)


def verifier_of(verify: Callable[..., Any], interface: Interface, bits: int | None = None) -> Verifier:
    """Wrap a callable as a verifier. Raises ValueError if the interface does not call a Python function."""
    if interface == "rule":
        return RuleVerifier(verify)
    if interface in LAYOUTS:
        return LAYOUTS[interface].open(verify, bits or 24)
    if interface == "session":
        return SessionVerifier(verify, bits or 53)
    if interface not in ("function", "seeded"):
        raise ValueError(f"interface: expected one that calls a Python function, got {interface!r}")
    return CallableVerifier(verify, "seeds" if interface == "seeded" else "uniforms", bits or 53)


def drawn_by(spec: Spec) -> Drawn:
    """The default kind of trees for testing a verifier."""
    if spec.target.startswith(RULE):
        return min(RULES[spec.target.removeprefix(RULE)].drawn)
    name = spec.target.removeprefix(GALLERY)
    if spec.target.startswith(GALLERY) and name in BY_NAME:
        return min(BY_NAME[name].drawn)
    return "iid" if needs_chain(spec) else "top_k"


def needs_chain(spec: Spec) -> bool:
    """Whether a verifier supports only chains."""
    if spec.target.startswith(RULE):
        return RULES[spec.target.removeprefix(RULE)].needs_chain
    interface = interface_of(spec)
    return interface == "session" or (interface in LAYOUTS and LAYOUTS[interface].chain)


def interface_of(spec: Spec) -> Interface:
    """How a verifier is called; for gallery entries, the interface follows from the name."""
    name = spec.target.removeprefix(GALLERY)
    if not spec.target.startswith(GALLERY):
        return spec.interface
    session = name == "right-session" or name in SESSIONS
    return "session" if session else "function"


def _of_the_gallery(name: str) -> Verifier:
    if name in ("right", "right-session"):
        return WalkVerifier(RIGHT) if name == "right" else SessionVerifier(RIGHT_SESSION)
    if name in SESSIONS:
        return SessionVerifier(SESSIONS[name].session)
    if name not in BY_NAME:
        names = ["right", "right-session", *SESSIONS, *BY_NAME]
        raise ValueError(f"gallery: there is no '{name}'; {suggest(name, names)}")
    return WalkVerifier(BY_NAME[name].verify)

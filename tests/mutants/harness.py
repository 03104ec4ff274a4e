"""What the tests of planted bugs share: a module with a bug in it, and what counts as caught."""

import dis
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType, TracebackType
from typing import Any

import numpy as np
import pytest

from underpaint import algos

ROOT = Path(algos.__file__).parent
_RAISE = dis.opmap["RAISE_VARARGS"]


def load(name: str, old: str = "", new: str = "") -> ModuleType:
    """The module algos/`name` with `old` replaced by `new`, kept out of the registries; `old` must be there."""
    source = (ROOT / name).read_text(encoding="utf-8")
    assert old in source, f"{name} no longer has {old!r}: point the mutant at the new code"
    source = source.replace(old, new)
    for registry in ("RULES", "POLICIES"):
        source = source.replace(f"{registry}.register(", "(lambda spec: spec)(")
    module = ModuleType(f"mutant_of_{Path(name).stem}")
    exec(compile(source, str(ROOT / name), "exec"), module.__dict__)
    return module


def refused(error: BaseException) -> bool:
    """Whether a `raise` statement of the product made `error`: a refusal that a user would see.

    An error out of NumPy's own code (a shape that does not fit, an index) ends in a line that raises nothing itself.
    """
    last: TracebackType | None = error.__traceback__
    if last is None:
        return False
    while last.tb_next is not None:
        last = last.tb_next
    code = last.tb_frame.f_code
    return Path(code.co_filename).is_relative_to(ROOT) and code.co_code[last.tb_lasti] == _RAISE


@contextmanager
def caught() -> Iterator[None]:
    """The block must end in a failed assertion or in a refusal of the product; a crash does not count."""
    try:
        with np.errstate(all="ignore"):
            yield
    except (AssertionError, pytest.fail.Exception):
        return
    except (ValueError, RuntimeError) as error:
        if not refused(error):
            raise
        return
    pytest.fail("the bug is not caught")


def check_is_caught(check: Callable[[ModuleType], None], name: str, old: str, new: str) -> None:
    """`check` must pass on the module algos/`name` as it is elsewhere, and fail on it with `old` replaced by `new`."""
    mutant = load(name, old, new)
    with caught():
        check(mutant)


Plant = Callable[[ModuleType], None]


def around(owner: str, method: str, wrong: Callable[..., Any]) -> Plant:
    """Plant a method that is given the right one, and then what it is called with.

    The class is replaced by a subclass, so that a class that the module only imports stays right elsewhere.
    """

    def plant(module: ModuleType) -> None:
        right_class = getattr(module, owner)
        right = getattr(right_class, method)
        own = {"__slots__": (), method: lambda *asked: wrong(right, *asked)}
        setattr(module, owner, type(owner, (right_class,), own))

    return plant


def instead(owner: str, name: str, value: Any) -> Plant:
    """Plant another property or class method."""

    def plant(module: ModuleType) -> None:
        setattr(module, owner, type(owner, (getattr(module, owner),), {"__slots__": (), name: value}))

    return plant


def with_attributes(right: Any, known: Any, asked: tuple[Any, ...], **changed: Any) -> Any:
    """Call a right method while some attributes are others."""
    before = {name: getattr(known, name) for name in changed}
    for name, value in changed.items():
        setattr(known, name, value)
    found = right(known, *asked)
    for name, value in before.items():
        setattr(known, name, value)
    return found

"""What the tests of planted bugs share: a module with a bug in it, and what counts as caught."""

import dis
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from types import ModuleType, TracebackType
from typing import Any

import numpy as np
import pytest

from underpaint import algos

ROOT = Path(algos.__file__).parent
_RAISE = dis.opmap["RAISE_VARARGS"]


def load(name: str) -> ModuleType:
    """A copy of the module algos/`name` to plant a bug in, kept out of the registries."""
    source = (ROOT / name).read_text(encoding="utf-8")
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


Plant = Callable[[ModuleType], None]


def check_is_caught(check: Callable[[ModuleType], None], name: str, *plants: Plant) -> None:
    """`check`, which passes on the module algos/`name` elsewhere, must fail on it with these bugs planted."""
    mutant = load(name)
    for plant in plants:
        plant(mutant)
    with caught():
        check(mutant)


def replaced(name: str, wrong: Callable[..., Any]) -> Plant:
    """Plant another function of the module; what the module imports is replaced in this module alone."""

    def plant(module: ModuleType) -> None:
        assert hasattr(module, name), f"{module.__name__} no longer has {name}"
        setattr(module, name, wrong)

    return plant


def wrapped(name: str, wrong: Callable[..., Any]) -> Plant:
    """Plant a function that is given the right one, and then what it is called with."""
    return lambda module: replaced(name, partial(wrong, getattr(module, name)))(module)


def around(owner: str, method: str, wrong: Callable[..., Any]) -> Plant:
    """Plant a method that is given the right one, and then what it is called with.

    The class is replaced by a subclass, so that a class that the module only imports stays right elsewhere.
    """

    def plant(module: ModuleType) -> None:
        right_class = getattr(module, owner)
        right = getattr(right_class, method)
        attributes = {"__slots__": (), method: lambda *args: wrong(right, *args)}
        setattr(module, owner, type(owner, (right_class,), attributes))

    return plant


def instead(owner: str, name: str, value: Any) -> Plant:
    """Plant another property or class method."""

    def plant(module: ModuleType) -> None:
        right_class = getattr(module, owner)
        assert hasattr(right_class, name), f"{owner} no longer has {name}"
        setattr(module, owner, type(owner, (right_class,), {"__slots__": (), name: value}))

    return plant


def with_attributes(right: Any, instance: Any, args: tuple[Any, ...], **changed: Any) -> Any:
    """Call a right method while some attributes are others."""
    before = {name: getattr(instance, name) for name in changed}
    for name, value in changed.items():
        setattr(instance, name, value)
    result = right(instance, *args)
    for name, value in before.items():
        setattr(instance, name, value)
    return result

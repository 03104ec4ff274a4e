"""Options that belong together: a dataclass among a command's parameters stands for its fields."""

from collections.abc import Callable
from dataclasses import is_dataclass
from functools import wraps
from inspect import Parameter, Signature, signature
from typing import Any


def grouped(command: Callable[..., None]) -> Callable[..., None]:
    """`command` as Typer reads it: where a parameter's type is a dataclass, its fields are options in that place.

    Fields are declared as options are: annotated, with a default. All other parameters stay as they are.
    """
    own = signature(command).parameters
    groups: dict[str, Any] = {name: given.annotation for name, given in own.items() if is_dataclass(given.annotation)}
    fields = {name: signature(group).parameters for name, group in groups.items()}
    shown = [option for name, given in own.items() for option in (fields[name].values() if name in groups else [given])]

    @wraps(command)
    def called(**given: Any) -> None:
        for name, group in groups.items():
            given[name] = group(**{option: given.pop(option) for option in fields[name]})
        command(**given)

    by_name = [option.replace(kind=Parameter.KEYWORD_ONLY) for option in shown]
    called.__dict__["__signature__"] = Signature(by_name)
    return called

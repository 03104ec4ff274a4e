"""Names to specifications, with errors that suggest the nearest name."""

import dataclasses
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from difflib import get_close_matches
from importlib import import_module
from types import ModuleType
from typing import Any, Generic, Protocol, TypeVar

from underpaint.algos.bounds import check_bounds
from underpaint.algos.plugins import load_entry_points, named


class Named(Protocol):
    """Anything with a name of its own."""

    @property
    def name(self) -> str:
        """The name users type."""
        ...


Spec = TypeVar("Spec", bound=Named)
Made = TypeVar("Made")


def suggest(name: str, known: Iterable[str]) -> str:
    """A hint on `name`: the nearest of `known`, and all of them."""
    names = sorted(known)
    near = get_close_matches(name, names, n=1, cutoff=0.5)
    return (f"did you mean '{near[0]}'? " if near else "") + f"known: {', '.join(names)}"


class Registry(Generic[Spec]):
    """Specifications of one kind by name, in the order they were registered.

    group: the entry points by which installed packages add to it, each naming a specification or a module that
    registers one. They are loaded once, when the registry is first listed or asked for a name that it does not hold.
    modules: the project's own names, in order, each with the module that registers it, which is imported when the name
    is first asked for.
    """

    def __init__(self, kind: str, group: str = "", modules: Mapping[str, str] | None = None) -> None:
        self._kind = kind
        self._group = group
        self._specs: dict[str, Spec] = {}
        self._replaceable: set[str] = set()
        self._modules = dict(modules or {})

    def register(self, spec: Spec, *, replace: bool | None = None) -> Spec:
        """Add a specification under its name.

        Args:
            spec: What to add.
            replace: None for specifications of the project and of packages, which stay. True or False for those that a
                user types: they can be replaced later, and True replaces an earlier one.

        Returns:
            `spec`.

        Raises:
            ValueError: The name is taken.
        """
        if self._modules.get(spec.name, "sys") not in sys.modules:
            self._load(spec.name)
        replaceable = spec.name in self._replaceable
        if spec.name in self._specs and not (replace and replaceable):
            remedy = "pass replace=True to replace it, or choose another name" if replaceable else "choose another name"
            raise ValueError(f"{self._kind}: '{spec.name}' is registered already; {remedy}")
        self._specs[spec.name] = spec
        if replace is not None:
            self._replaceable.add(spec.name)
        return spec

    def _load(self, name: str) -> None:
        """Import what registers `name`, where that is a module of the project."""
        if name in self._modules and name not in self._specs:
            import_module(self._modules[name])

    def _load_all(self) -> None:
        for name in self._modules:
            self._load(name)
        self._load_entry_points()

    def loaded(self) -> Iterator[Spec]:
        """Iterate over what is registered so far, and import nothing."""
        return iter(self._specs.values())

    def _load_entry_points(self) -> None:
        group, self._group = self._group, ""
        if not group:
            return
        for plugin, found in load_entry_points(group):
            if isinstance(found, ModuleType) or any(spec is found for spec in self._specs.values()):
                continue  # it has registered itself
            with named(plugin):
                self.register(self._checked(found))

    def _checked(self, found: Any) -> Spec:
        kinds = {type(spec) for spec in self}
        if kinds and type(found) not in kinds:
            expected = " or ".join(sorted(kind.__name__ for kind in kinds))
            raise ValueError(f"{self._kind}: expected a module or a {expected}, got {found!r}")
        spec: Spec = found
        return spec

    def __getitem__(self, name: str) -> Spec:
        if name not in self:
            raise ValueError(f"{self._kind}: there is no '{name}'; {suggest(name, {*self._modules, *self._specs})}")
        self._load(name)
        return self._specs[name]

    def __iter__(self) -> Iterator[Spec]:
        self._load_all()
        return iter([self._specs[name] for name in dict.fromkeys((*self._modules, *self._specs))])

    def __contains__(self, name: object) -> bool:
        if name not in self._modules and name not in self._specs:
            self._load_entry_points()
        return name in self._modules or name in self._specs

    def __len__(self) -> int:
        self._load_all()
        return len(self._specs)


def settings_fields(make: Callable[..., Any]) -> dict[str, dataclasses.Field[Any]]:
    """The fields of the dataclass `make` that are settings; TypeError where it is no dataclass, which is a mistake of
    who registered it."""
    if not dataclasses.is_dataclass(make):
        raise TypeError(f"{make!r}: expected a dataclass, whose fields are settings")
    return {field.name: field for field in dataclasses.fields(make) if field.init}


def check_dataclass(what: str, make: object) -> None:
    """ValueError unless what is registered as `what` is a dataclass, whose fields are its settings."""
    if not (isinstance(make, type) and dataclasses.is_dataclass(make)):
        raise ValueError(f"{what}: expected make to be a dataclass, whose fields are its settings, got {make!r}")


def check_reference(what: str, reference: object) -> None:
    """ValueError unless the device form that `what` names is None or a reference like "package.module:function"."""
    if reference is None:
        return
    module, colon, name = reference.rpartition(":") if isinstance(reference, str) else ("", "", "")
    if not (module and colon and name.isidentifier()):
        raise ValueError(
            f'{what}: expected device to be "module:function" or "path/of/file.py:function", got {reference!r}'
        )


def default_settings(make: Callable[..., Any]) -> dict[str, Any]:
    """The defaults of the settings of the dataclass `make`; a setting without a default is left out."""
    found: dict[str, Any] = {}
    for name, field in settings_fields(make).items():
        if field.default is not dataclasses.MISSING:
            found[name] = field.default
        elif field.default_factory is not dataclasses.MISSING:
            found[name] = field.default_factory()
    return found


def build(make: Callable[..., Made], settings: Mapping[str, Any], what: str) -> Made:
    """`make(**settings)` for a dataclass `make`; ValueError names a setting that is unknown, missing or too large."""
    known = settings_fields(make)
    for name in settings:
        if name not in known:
            raise ValueError(f"{what}: unknown setting '{name}'; {suggest(name, known) if known else 'it takes none'}")
    needed = [
        name
        for name, field in known.items()
        if field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING
    ]
    missing = [name for name in needed if name not in settings]
    if missing:
        raise ValueError(f"{what}: missing setting {', '.join(missing)}")
    made = make(**settings)
    check_bounds(what, made)
    return made

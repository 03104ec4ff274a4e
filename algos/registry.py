"""Registries of specifications by name, and the bounds of their settings. Unknown names suggest the nearest name.

A setting declares its bounds in its annotation: `depth: Nodes = 5`, or `Annotated[float, Bounds(0.0, 2.0)]`.
"""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import is_dataclass
from difflib import get_close_matches
from functools import cache
from importlib import import_module
from math import isnan
from types import ModuleType, UnionType
from typing import (
    Annotated,
    Any,
    Final,
    Generic,
    Literal,
    NamedTuple,
    Protocol,
    TypeAlias,
    TypeVar,
    Union,
    get_args,
    get_origin,
    get_type_hints,
)

from underpaint.algos.numbers import MOST_FACTOR
from underpaint.algos.plugins import load_entry_points, named


class Named(Protocol):
    """Any object with a `name`, such as a specification."""

    @property
    def name(self) -> str:
        """The name that users type."""
        ...


Spec = TypeVar("Spec", bound=Named)
T = TypeVar("T")


def suggest(name: str, known_names: Iterable[str]) -> str:
    """Return a hint for the unknown `name`: the nearest of `known_names`, then all of them."""
    names = sorted(known_names)
    near = get_close_matches(name, names, n=1, cutoff=0.5)
    return (f"did you mean '{near[0]}'? " if near else "") + f"known: {', '.join(names)}"


class Registry(Generic[Spec]):
    """Specifications of one kind by name, in the order of registration.

    Args:
        kind: What the specifications are called in error messages.
        group: The entry point group through which installed packages add specifications; an entry point names a
            specification or a module that registers one. Loaded once, on the first listing or unknown name.
        modules: The project's own names in order, each with the module that registers it. A module is imported when
            its name is first looked up.
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
            spec: The specification to add.
            replace: None for specifications of the project and of packages, which cannot be replaced. True or False for
                specifications typed by a user: they can be replaced later, and True replaces an earlier one.

        Returns:
            `spec`.

        Raises:
            ValueError: The name is already registered and cannot be replaced.
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
        """Import the project module that registers `name`, if there is one."""
        if name in self._modules and name not in self._specs:
            import_module(self._modules[name])

    def _load_all(self) -> None:
        for name in self._modules:
            self._load(name)
        self._load_entry_points()

    def loaded(self) -> Iterator[Spec]:
        """Iterate over the specifications registered so far, without importing anything."""
        return iter(self._specs.values())

    def _load_entry_points(self) -> None:
        group, self._group = self._group, ""
        if not group:
            return
        for plugin, entry in load_entry_points(group):
            if isinstance(entry, ModuleType) or any(spec is entry for spec in self._specs.values()):
                continue  # already registered by the module itself
            with named(plugin):
                self.register(self._checked(entry))

    def _checked(self, entry: Any) -> Spec:
        kinds = {type(spec) for spec in self}
        if kinds and type(entry) not in kinds:
            expected = " or ".join(sorted(kind.__name__ for kind in kinds))
            raise ValueError(f"{self._kind}: expected a module or a {expected}, got {entry!r}")
        spec: Spec = entry
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
    """Return the fields of `make` that are settings; raise TypeError if `make` is not a dataclass."""
    if not dataclasses.is_dataclass(make):
        raise TypeError(f"{make!r}: expected a dataclass, whose fields are settings")
    return {field.name: field for field in dataclasses.fields(make) if field.init}


def check_dataclass(what: str, make: object) -> None:
    """Raise ValueError unless `make`, registered as `what`, is a dataclass, whose fields are its settings."""
    if not (isinstance(make, type) and dataclasses.is_dataclass(make)):
        raise ValueError(f"{what}: expected make to be a dataclass, whose fields are its settings, got {make!r}")


def check_reference(what: str, reference: object) -> None:
    """Raise ValueError unless the device form of `what` is None or a reference like "package.module:function"."""
    if reference is None:
        return
    module, colon, name = reference.rpartition(":") if isinstance(reference, str) else ("", "", "")
    if not (module and colon and name.isidentifier()):
        raise ValueError(
            f'{what}: expected device to be "module:function" or "path/of/file.py:function", got {reference!r}'
        )


def default_settings(make: Callable[..., Any]) -> dict[str, Any]:
    """Return the default settings of the dataclass `make`, without the settings that have no default."""
    defaults: dict[str, Any] = {}
    for name, field in settings_fields(make).items():
        if field.default is not dataclasses.MISSING:
            defaults[name] = field.default
        elif field.default_factory is not dataclasses.MISSING:
            defaults[name] = field.default_factory()
    return defaults


def build(make: Callable[..., T], settings: Mapping[str, Any], what: str) -> T:
    """Return `make(**settings)` for a dataclass `make`; raise ValueError on an unknown, missing or invalid setting."""
    fields = settings_fields(make)
    for name in settings:
        if name not in fields:
            raise ValueError(
                f"{what}: unknown setting '{name}'; {suggest(name, fields) if fields else 'it takes none'}"
            )
    needed = [
        name
        for name, field in fields.items()
        if field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING
    ]
    missing = [name for name in needed if name not in settings]
    if missing:
        raise ValueError(f"{what}: missing setting {', '.join(missing)}")
    instance = make(**settings)
    check_bounds(what, instance)
    return instance


MOST_NODES: Final = 4096
"""Upper bound on drafted nodes, levels and children of a tree; models score fewer nodes, see `draft.settings`."""
MOST_CELLS: Final = 65_536
"""Upper bound on the cells of an image (256 x 256), and so on cycles and on the cells of a window."""
MOST_CODES: Final = 1_048_576
"""Upper bound on the number of codes in a codebook."""
MOST_WEIGHT: Final = 1e6
"""Upper bound on the weight of a prior, in tokens; such a prior practically never changes."""
MOST_MS: Final = 1e9
"""Upper bound on the milliseconds of a pass (11 days), also when cost curves are read."""


class Bounds(NamedTuple):
    """The range of values that a setting accepts, from `least` to `most`; `above` excludes `least` itself."""

    least: float
    most: float
    above: bool = False

    def check(self, what: str, value: object) -> None:
        """Raise ValueError, naming `what` and the bound, if `value` is a number out of range.

        For a tuple, check every entry; for entries that are pairs `(number, value)`, check the value.
        """
        if isinstance(value, tuple | list):
            for place, entry in enumerate(value):
                pair = isinstance(entry, tuple | list)
                self.check(f"{what} at {entry[0]}" if pair else f"{what}[{place}]", entry[1] if pair else entry)
            return
        if value is None or isinstance(value, bool) or not isinstance(value, int | float):
            return
        if isnan(value) or value < self.least or (self.above and value == self.least):
            least = "above" if self.above else "at least"
            raise ValueError(f"{what} must be {least} {self.least:,g}, got {value!r}")
        if value > self.most:
            most = f"{self.most:,}" if isinstance(self.most, int) else f"{self.most:g}"
            raise ValueError(f"{what} must be at most {most}, got {value!r}")


class Tune(NamedTuple):
    """The values of a setting that `underpaint tune` tries. If empty: all options of a choice, or true and false.

    A setting without `Tune` keeps its preset value: it defines the method, or was measured separately.
    """

    values: tuple[object, ...] = ()


Share: TypeAlias = Annotated[float, Bounds(0.0, 1.0)]
PositiveShare: TypeAlias = Annotated[float, Bounds(0.0, 1.0, above=True)]
Weight: TypeAlias = Annotated[float, Bounds(0.0, MOST_WEIGHT, above=True)]
"""The weight of a prior before an image is seen, in expected tokens."""
Milliseconds: TypeAlias = Annotated[float, Bounds(0.0, MOST_MS)]
Nodes: TypeAlias = Annotated[int, Bounds(1, MOST_NODES)]
"""Drafted nodes of a tree, its levels, or the children of one node."""
NodesOrNone: TypeAlias = Annotated[int, Bounds(0, MOST_NODES)]
Cells: TypeAlias = Annotated[int, Bounds(1, MOST_CELLS)]
"""Cells of a window or of a lead, or cycles of an image."""
CellsOrNone: TypeAlias = Annotated[int, Bounds(0, MOST_CELLS)]
Factor: TypeAlias = Annotated[float, Bounds(1.0, MOST_FACTOR)]
"""The largest ratio between the mass of a token with its pool, and the mass of the token alone."""
Codes: TypeAlias = Annotated[int, Bounds(0, MOST_CODES)]
"""The number of nearest codes per code; the neighbour table in use has a tighter bound."""


@cache
def declared(make: Callable[..., Any]) -> dict[str, tuple[Bounds | None, tuple[object, ...]]]:
    """Return, for each field of the dataclass `make`, its bounds (or None) and the options of a choice (or ())."""
    hints = get_type_hints(make, include_extras=True)
    return {name: (next(_bounds(kind), None), tuple(_options(kind))) for name, kind in hints.items()}


@cache
def values_to_tune(make: Callable[..., Any]) -> dict[str, tuple[object, ...]]:
    """Return, by field of the dataclass `make`, the values to try; only fields that declare `Tune`."""
    grids = {}
    for name, kind in get_type_hints(make, include_extras=True).items():
        extras = get_args(kind)[1:] if get_origin(kind) is Annotated else ()
        for grid in (extra for extra in extras if isinstance(extra, Tune)):
            bare = get_args(kind)[0]
            grids[name] = grid.values or ((True, False) if bare is bool else tuple(_options(bare)))
    return grids


def check_bounds(what: str, settings: Any) -> None:
    """Raise ValueError, naming `what` and the setting, unless all fields of a dataclass are within their bounds.

    Args:
        what: The owner of the settings, such as "policy 'eagle2'".
        settings: An instance of a dataclass. Fields without declared bounds, or not set yet, are skipped.
    """
    make: Callable[..., Any] = type(settings)
    for name, (bounds, options) in declared(make).items():
        if not hasattr(settings, name):
            continue
        value = getattr(settings, name)
        if bounds is not None:
            bounds.check(f"{what}: {name}", value)
        if is_dataclass(value):
            check_bounds(f"{what}: {name}", value)
        if options and value not in options:
            raise ValueError(f"{what}: {name} must be one of {', '.join(map(str, options))}, got {value!r}")


def _bounds(kind: Any) -> Iterator[Bounds]:
    if get_origin(kind) is Annotated:
        yield from (extra for extra in get_args(kind)[1:] if isinstance(extra, Bounds))
        yield from _bounds(get_args(kind)[0])
    elif get_origin(kind) in (Union, UnionType, tuple):
        for part in get_args(kind):
            yield from _bounds(part)


def _options(kind: Any) -> Iterator[object]:
    """Yield the options of a plain `Literal`; a `Literal` inside a union is ignored."""
    if get_origin(kind) is Annotated:
        yield from _options(get_args(kind)[0])
    elif get_origin(kind) is Literal:
        yield from get_args(kind)

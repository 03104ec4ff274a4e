"""`underpaint methods`: every method, tree policy and acceptance rule, with its promise and source."""

from typing import Annotated, Any

import typer

from underpaint.cli.errors import bad_input
from underpaint.cli.tables import Column, ResultTable, show
from underpaint.cli.terminal import Format, FormatOption, JsonFile, check_json, emit_json, note


def methods(
    settings: Annotated[
        bool, typer.Option("--settings", help="Show the settings of every method with their sources instead.")
    ] = False,
    preset: Annotated[
        str | None, typer.Option(help="Show only the settings of this preset, tuned or paper; implies --settings.")
    ] = None,
    form: FormatOption = Format.table,
    json_file: JsonFile = None,
) -> None:
    """List every method, tree policy and acceptance rule with what it does, its promise and its source."""
    from underpaint.runtime.methods.registry import PRESETS

    registries = listed()
    with bad_input():
        if preset is not None and preset not in PRESETS:
            raise ValueError(f"--preset: expected one of {', '.join(PRESETS)}, got {preset!r}")
        check_json(json_file)
    if emit_json(json_file, registries):
        return
    if settings or preset is not None:
        presets = PRESETS if preset is None else (preset,)
        show([_preset_table(registries["methods"], name) for name in presets], form)
        return
    tables = []
    for title, columns in (
        ("methods", ("name", "summary", "draws_by")),
        ("policies", ("name", "siblings", "source")),
        ("rules", ("name", "promise", "covers", "source")),
    ):
        rows = [{column: _cell_text(one, column) for column in columns} for one in registries[title]]
        tables.append(ResultTable(title, [Column(name, prose=name != "name") for name in columns], rows))
    show(tables, form)
    note("next: underpaint methods --settings lists the settings of every method and their sources", form)


def _preset_table(methods: list[dict[str, Any]], preset: str) -> ResultTable:
    """Return a table of one preset: each method's settings, those at temperature 0, and their sources."""
    from underpaint.runtime.methods.settings import settings_line

    rows = []
    for method in methods:
        settings = method["presets"][preset]
        warm, cold = settings_line(settings["sampled"]), settings_line(settings["greedy"])
        sources = "; ".join(f"{name}: {source}" for name, source in settings["sources"].items())
        greedy = "the same" if warm == cold else cold
        rows.append({"method": method["name"], "sampled": warm, "greedy": greedy, "from": sources})
    columns = (
        Column("method"),
        Column("sampled", "above temperature 0", prose=True),
        Column("greedy", "at temperature 0", prose=True),
        Column("from", prose=True),
    )
    return ResultTable(f"{preset} settings", columns, rows)


def listed() -> dict[str, list[dict[str, Any]]]:
    """Return the registries as values that JSON can hold."""
    from underpaint.algos.accept import RULES
    from underpaint.algos.draft import POLICIES
    from underpaint.runtime.methods.method import GIVEN_BY_ENGINE
    from underpaint.runtime.methods.registry import METHODS, PRESETS
    from underpaint.runtime.methods.settings import settings_by_default

    return {
        "methods": [
            {
                "name": method.name,
                "summary": method.summary,
                "family": method.tuned.sampled.family,
                "draws_by": method.tuned.sampled.draws_by,
                "draws_by_at_temperature_0": method.tuned.greedy.draws_by,
                "presets": {
                    name: {
                        "sampled": method.preset(name).sampled.to_dict(),
                        "greedy": method.preset(name).greedy.to_dict(),
                        "sources": dict(method.preset(name).sources),
                    }
                    for name in PRESETS
                },
            }
            for method in METHODS
        ],
        "policies": [
            {
                "name": policy.name,
                "drawn": policy.drawn,
                "chain": policy.chain,
                "source": policy.source,
                "deviations": policy.deviations,
                "settings": settings_by_default(policy.make, GIVEN_BY_ENGINE),
            }
            for policy in POLICIES
        ],
        "rules": [
            {
                "name": rule.name,
                "promise": rule.promise,
                "bound": rule.bound,
                "covers": sorted(rule.drawn) + (["chain"] if rule.needs_chain else []),
                "greedy": rule.greedy,
                "residuals": list(rule.residuals),
                "lossless_at": [settings for settings in rule.examples if rule.is_lossless(settings)],
                "source": rule.source,
                "deviations": rule.deviations,
                "settings": settings_by_default(rule.make, GIVEN_BY_ENGINE),
            }
            for rule in RULES
        ],
    }


def _cell_text(one: dict[str, Any], column: str) -> str:
    if column == "draws_by":
        warm, cold = one["draws_by"], one["draws_by_at_temperature_0"]
        return str(warm) if warm == cold else f"{warm} (at temperature 0: {cold})"
    value = one["drawn" if column == "siblings" else column]
    return ", ".join(value) if isinstance(value, list) else str(value)

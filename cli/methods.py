"""`underpaint methods`: every method, tree policy and acceptance rule, with its promise and source."""

import json
from typing import Annotated, Any

import typer


def methods(
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON, with every setting and deviation.")] = False,
) -> None:
    """List every method, tree policy and acceptance rule, with its promise and source."""
    found = listed()
    if as_json:
        typer.echo(json.dumps(found, indent=1))
        return
    from underpaint.cli.terminal import console, table

    for title, columns in (
        ("methods", ("name", "draws_by", "summary")),
        ("policies", ("name", "siblings", "source")),
        ("rules", ("name", "promise", "covers", "source")),
    ):
        shown = table(title)
        for column in columns:
            shown.add_column(column.replace("_", " "), no_wrap=column == "name")
        for one in found[title]:
            shown.add_row(*(_shown(one, column) for column in columns))
        console().print(shown)


def listed() -> dict[str, list[dict[str, Any]]]:
    """The registries as JSON holds them."""
    from underpaint.algos.accept import RULES
    from underpaint.algos.draft import POLICIES
    from underpaint.runtime.codes import FROM_ENGINE
    from underpaint.runtime.methods.registry import METHODS
    from underpaint.runtime.methods.settings import settings_by_default

    return {
        "methods": [
            {
                "name": method.name,
                "summary": method.summary,
                "family": method.sampled.family,
                "draws_by": method.sampled.draws_by,
                "draws_by_at_temperature_0": method.greedy.draws_by,
                "sampled": method.sampled.to_dict(),
                "greedy": method.greedy.to_dict(),
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
                "settings": settings_by_default(policy.make, FROM_ENGINE),
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
                "settings": settings_by_default(rule.make, FROM_ENGINE),
            }
            for rule in RULES
        ],
    }


def _shown(one: dict[str, Any], column: str) -> str:
    if column == "draws_by":
        warm, cold = one["draws_by"], one["draws_by_at_temperature_0"]
        return str(warm) if warm == cold else f"{warm} (at temperature 0: {cold})"
    value = one["drawn" if column == "siblings" else column]
    return ", ".join(value) if isinstance(value, list) else str(value)

"""`underpaint exact`: the exact output distribution of a rule on a small synthetic model."""

from typing import TYPE_CHECKING, Annotated, Any

import typer

from underpaint.cli.errors import bad_input
from underpaint.cli.tables import Column, ResultTable, figure, show
from underpaint.cli.terminal import Format, FormatOption, JsonFile, check_json, emit_json

if TYPE_CHECKING:
    from underpaint.sim.exact.rule_report import ExactReport


BROKEN_PROMISE = 1
"""The exit code of a rule that breaks its promise."""


def exact(
    rule: Annotated[str, typer.Argument(help="An acceptance rule; see `underpaint methods`.")],
    model: Annotated[str, typer.Option(help="Synthetic target and drafter: flat, peaked, near or far.")] = "flat",
    policy: Annotated[
        str | None, typer.Option(help="Tree policy; default: the first of chain, eagle1 and eagle2 that fits the rule.")
    ] = None,
    setting: Annotated[
        list[str] | None, typer.Option("--set", help="A setting of the rule, as name=value; repeat for more.")
    ] = None,
    policy_setting: Annotated[
        list[str] | None, typer.Option("--set-policy", help="A setting of the policy, as name=value; repeat for more.")
    ] = None,
    max_nodes: Annotated[
        int, typer.Option(help="Nodes of the largest draft tree, with its root; the work grows fast with it.", max=12)
    ] = 4,
    timeout: Annotated[
        float, typer.Option(help="Seconds that one call of a plug-in may take.", min=0.1, max=86_400)
    ] = 10.0,
    form: FormatOption = Format.table,
    json_file: JsonFile = None,
) -> None:
    """Compute a rule's exact bias and acceptance by enumeration, and the best that any lossless rule can reach."""
    from underpaint.algos.accept import RULES
    from underpaint.algos.draft import POLICIES
    from underpaint.algos.plugin_guard import answers_within
    from underpaint.runtime.methods.method import GIVEN_BY_ENGINE
    from underpaint.runtime.methods.settings import read_settings
    from underpaint.sim.exact.promise import keeps_promise
    from underpaint.sim.exact.rule_report import MODELS, exact_report

    with bad_input():
        _require_rule(rule)
        settings = read_settings(f"rule '{rule}'", RULES[rule].make, setting or [], GIVEN_BY_ENGINE)
        policy_settings: dict[str, Any] = {}
        if policy is not None:
            policy_settings = dict(read_settings(f"policy '{policy}'", POLICIES[policy].make, policy_setting or []))
        elif policy_setting:
            raise ValueError("--set-policy needs --policy; name the policy that has the setting")
        MODELS[model]
        check_json(json_file)
        with answers_within(timeout):
            report = exact_report(rule, model, policy, settings, policy_settings, max_nodes)
    plain = {**report._asdict(), "keeps_promise": keeps_promise(report)}
    plain["residuals"] = {name: one._asdict() for name, one in report.residuals.items()}
    if emit_json(json_file, plain):
        _require_promise(report)
        return
    if form is Format.table:
        typer.echo(_report_text(report))
    by_residual = _by_figures(report) if form is Format.table else plain["residuals"]
    residuals = [{"residual": name, **one} for name, one in by_residual.items()]
    figures = ResultTable(
        "exact",
        [Column("figure"), Column("value")],
        [{"figure": name, "value": value} for name, value in plain.items() if name != "residuals"],
    )
    tables = [ResultTable("by residual", _RESIDUALS, residuals)] if residuals else []
    show(tables if form is Format.table else [figures, *tables], form)
    _require_promise(report)


def _require_rule(name: str) -> None:
    """Raise ValueError if `name` is a policy or a method, and say which rule may be meant."""
    from underpaint.algos.accept import RULES
    from underpaint.algos.draft import POLICIES
    from underpaint.runtime.methods.registry import METHODS, resolve

    if name in RULES:
        return
    if name in METHODS:
        rule = resolve(name, 1.0).to_dict().get("rule")
        hint = f"; at temperature 1 its rule is '{rule}': try `underpaint exact {rule}`" if rule in RULES else ""
        raise ValueError(
            f"rule: '{name}' is a method, expected an acceptance rule{hint}. `underpaint methods` lists the rules"
        )
    if name in POLICIES:
        raise ValueError(
            f"rule: '{name}' is a policy, which grows draft trees; expected an acceptance rule, which verifies them. "
            f"Name the rule first: `underpaint exact RULE --policy {name}`; `underpaint methods` lists the rules"
        )


def _require_promise(report: "ExactReport") -> None:
    """Print an error and exit with `BROKEN_PROMISE` if a rule breaks its promise."""
    from underpaint.algos.accept import RULES
    from underpaint.sim.exact.promise import keeps_promise

    if keeps_promise(report) is False:
        lossless = RULES[report.rule].is_lossless(report.settings)
        reason = (
            f"promises to be lossless and is not: total variation {report.total_variation:.3g}"
            if lossless or report.beyond_bound is None
            else f"promises '{report.bound}' and does not keep it: the next token's total variation is "
            f"{report.beyond_bound:.3g} more"
        )
        typer.echo(f"error: rule '{report.rule}' {reason}; mend the rule, or its promise", err=True)
        raise typer.Exit(BROKEN_PROMISE)


_RESIDUALS = (
    Column("residual"),
    figure("total_variation", "total variation", ".3g"),
    figure("total_variation_cycle", "after one cycle", ".3g"),
    figure("accepted_tokens", "tokens kept", ".4f"),
    figure("passes", "target passes", ".4f"),
)


def _by_figures(report: "ExactReport") -> dict[str, dict[str, Any]]:
    """Return the figures by residual; residuals with the same displayed figures share a row."""
    alike: dict[tuple[str, ...], list[str]] = {}
    for name, one in report.residuals.items():
        alike.setdefault(tuple(column.show(getattr(one, column.name)) for column in _RESIDUALS[1:]), []).append(name)
    return {", ".join(names): report.residuals[names[0]]._asdict() for names in alike.values()}


def _report_text(report: "ExactReport") -> str:
    from underpaint.sim.exact.rule_report import MODELS

    gap = round(report.transport_gap, 4) + 0.0  # never -0.0000
    settings = ", ".join(f"{name}={value}" for name, value in report.settings.items())
    bias = "exactly the target's" if report.total_variation < 1e-12 else "not the target's"
    lines = [
        f"rule {report.rule} on {report.policy} trees ({report.drawn})",
        f"settings                             {settings or 'none'}",
        f"--model {report.model:29s}{MODELS[report.model].title}; {report.vocab_size} tokens, "
        f"{report.grid[0]} x {report.grid[1]} cells",
        f"promise                              {report.promise}" + (f" ({report.bound})" if report.bound else ""),
        f"distribution of the image            {bias}: total variation {report.total_variation:.3g}",
        f"after one draft and verify           total variation {report.total_variation_cycle:.3g}",
        f"drafted tokens kept at first         {report.accepted_tokens:.4f}",
        f"chance to keep at least one          {report.acceptance:.4f}",
        f"the best of any lossless rule        {report.transport_bound:.4f} (gap {gap:+.4f})",
        f"target passes an image               {report.passes:.4f}",
    ]
    return "\n".join(lines)

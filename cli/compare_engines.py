"""`underpaint compare --engines DIR`: methods beside each other on an exported model."""

import json
from pathlib import Path
from typing import Any, cast

import typer

from underpaint.cli.drawing import draw_all
from underpaint.cli.errors import bad_input
from underpaint.cli.options import read_sampler, settings_by_method


def compare_engines(
    engines: Path,
    low: Path | None,
    backend: str,
    conditions: list[str],
    methods: str,
    setting: list[str],
    sampling: tuple[float, float | None, int | None, float | None],
    seeds: int,
    out: Path,
    figures_file: Path,
    fresh: bool,
) -> None:
    """Draw the same conditions by several methods: speed, cost, and pictures beside plain AR.

    The options are those of `cli.compare.compare`. conditions: classes, ids with commas between, or .npy files of
    features. low: the export of a smaller target, for multi-scale methods. sampling: temperature, guidance, top_k,
    top_p.
    """
    from underpaint.algos.rows import SamplingParams
    from underpaint.artifacts.manifest import digest, write_beside
    from underpaint.runtime.conditions import parse_condition
    from underpaint.runtime.evaluation.compare import Plan, with_baseline
    from underpaint.runtime.evaluation.compare_engines import figures, write_pictures
    from underpaint.runtime.evaluation.machine import describe_machine, typed_command
    from underpaint.runtime.evaluation.store import Store
    from underpaint.runtime.exported_studio import open_exported
    from underpaint.runtime.files import check_file_writable, check_folder_writable
    from underpaint.runtime.methods.registry import build_method, resolve

    with bad_input():
        temperature = SamplingParams(temperature=sampling[0]).temperature
        names = with_baseline(tuple(name.strip() for name in methods.split(",")))
        own = settings_by_method(setting, names)
        recipes = {name: resolve(name, temperature, None, own[name]) for name in names}
        wanted = tuple(parse_condition(text, "ids") for text in conditions)
        check_folder_writable(out)
        check_file_writable(figures_file)
        studio = cast(
            Any, open_exported(engines, backend, low=low)
        )  # all that drawing asks of a studio, without a judge
        sampler = read_sampler(*sampling, studio.sampler)
        built = tuple(build_method(name, recipes[name], studio.codes) for name in names)
        plan = Plan(built, cast(Any, wanted), tuple(range(seeds)), sampler)
        for condition in wanted:
            for method in built:
                method.open(studio, cast(Any, condition), sampler)
        files = {one.text: digest(one.features) for one in wanted if one.features is not None}
        asked = {**plan.to_dict(), **({"features": files} if files else {})}
        store = Store(out, {**asked, "model": studio.fingerprint()}, fresh=fresh)
    draw_all(studio, plan, store)
    rows = figures(plan, store)
    for row in rows:
        cycle = "" if row.tokens_per_cycle is None else f"  {row.tokens_per_cycle:.2f} tokens a cycle"
        same = "" if row.identical_share is None else f", {row.identical_share:.0%} the same as AR"
        typer.echo(
            f"{row.method:18s} {row.speedup:5.2f}x  {row.seconds_per_image:8.3f} s  NFE {row.target_nfe:6.1f} + "
            f"{row.drafter_nfe:6.1f}{cycle}{same}"
        )
    found = {
        "command": typed_command(),
        "machine": describe_machine(),
        "model": dict(studio.fingerprint()),
        "settings": asked,
        "rows": [row._asdict() for row in rows],
    }
    write_beside(figures_file, (json.dumps(found, indent=1) + "\n").encode())
    for path in (figures_file, *write_pictures(studio, plan, store, out)):
        typer.echo(str(path))

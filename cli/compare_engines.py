"""`underpaint compare --engines DIR`: methods beside each other on an exported model."""

import json
from pathlib import Path
from typing import Annotated, Any, cast

import typer

from cli.errors import bad_input
from cli.options import settings_by_method

app = typer.Typer(help="Compare methods on an exported model.", add_completion=False)
METHODS = (
    "ar,speculative,block,eagle1,eagle2,eagle2-static,adt,lantern,lantern++,adt+lantern,roofline,roofline+lantern,zipar"
)


@app.command()
def compare_engines(
    engines: Annotated[Path, typer.Option(help="A folder with a target, its drafter and its tokenizer.")],
    conditions: Annotated[
        list[str] | None, typer.Argument(help="Classes, ids with commas between, or .npy files of features.")
    ] = None,
    methods: Annotated[str, typer.Option(help="Methods, with commas between; AR is always among them.")] = METHODS,
    setting: Annotated[
        list[str] | None, typer.Option("--set", help="A setting of one method, method.name=value; repeat for more.")
    ] = None,
    backend: Annotated[str, typer.Option(help="cpu (ONNX Runtime), tensorrt or tensorrt-rtx.")] = "cpu",
    temperature: Annotated[float, typer.Option(help="0 takes the likeliest token.")] = 1.0,
    guidance: Annotated[float, typer.Option(help="Classifier-free guidance; 1 is none.")] = 4.0,
    top_k: Annotated[int, typer.Option(help="Tokens kept by likelihood; 0 keeps all.")] = 1000,
    seeds: Annotated[int, typer.Option(help="Seeds per condition, from 0.", min=1)] = 1,
    out: Annotated[Path, typer.Option(help="Folder for pictures and finished drawings.")] = Path("runs/engines"),
    fresh: Annotated[bool, typer.Option("--fresh", help="Discard the drawings that --out holds.")] = False,
) -> None:
    """Draw the same conditions by several methods: speed, cost, and pictures beside plain AR."""
    from algos.rows import Sampler
    from runtime.compare import Plan, run, with_baseline
    from runtime.compare_engines import figures, write_pictures
    from runtime.compare_store import Store
    from runtime.exported_studio import Condition, open_exported
    from runtime.files import check_folder_writable
    from runtime.machine import described
    from runtime.methods import build_method, resolve
    from zoo.manifest import write_beside

    with bad_input():
        sampler = Sampler(guidance=guidance, temperature=temperature, top_k=top_k)
        names = with_baseline(tuple(name.strip() for name in methods.split(",")))
        own = settings_by_method(setting or [], names)
        recipes = {name: resolve(name, temperature, None, own[name]) for name in names}
        wanted = tuple(Condition.parse(text) for text in conditions or ["0"])
        check_folder_writable(out)
        studio = cast(Any, open_exported(engines, backend))  # all that drawing asks of a studio, without a judge
        built = tuple(build_method(name, recipes[name], studio.codes) for name in names)
        plan = Plan(built, cast(Any, wanted), tuple(range(seeds)), sampler)
        for condition in wanted:
            for method in built:
                method.open(studio, cast(Any, condition), sampler)
        store = Store(out, {**plan.as_plain(), "model": studio.described()}, fresh=fresh)
    run(studio, plan, store, lambda state: typer.echo(f"{state.finished} of {state.size} drawings", err=True))
    rows = figures(plan, store)
    for row in rows:
        cycle = "" if row.tokens_per_cycle is None else f"  {row.tokens_per_cycle:.2f} tokens a cycle"
        same = "" if row.identical_share is None else f", {row.identical_share:.0%} the same as AR"
        typer.echo(
            f"{row.method:18s} {row.speedup:5.2f}x  {row.seconds_per_image:8.3f} s  NFE {row.target_nfe:6.1f} + "
            f"{row.drafter_nfe:6.1f}{cycle}{same}"
        )
    plain = {"machine": described(), "model": dict(studio.described()), "settings": plan.as_plain()}
    found = {**plain, "rows": [row._asdict() for row in rows]}
    write_beside(out / "compare.json", (json.dumps(found, indent=1) + "\n").encode())
    for path in (out / "compare.json", *write_pictures(studio, plan, store, out)):
        typer.echo(str(path))

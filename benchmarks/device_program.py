"""What a cycle on the device is made of, and the time that it implies: a prediction, made without a GPU.

Run: python -m benchmarks.device_program [--curves FOLDER] [--machines NAME,...] [--methods NAME,...] [--batches N ...]

Every method's cycle at LlamaGen-XL's and a 7B model's sizes is run on tensors without numbers. Each node of its graph
takes what the simulator's latency model says (`sim.latency.machines`): a launch, and the larger of its bytes at the
bandwidth that kernels reach and the instructions that its machine code issues (see `tools.sass`; for PyTorch's products
the first alone). Dependent launches are shorter and hide what they prefetch; `unprefetched_ms` is the time without
prefetching, `sequential_ms` without dependent launches too, `bytes_ms` that of the bytes alone. Weights are bfloat16,
guidance a pair of rows, half of the picture cached. Where a kernel's loops depend on data, the trips that its source
states are counted: 5 for top-k's threshold, two tried children at every node of an accepted path. A program that waits
for the device cannot be counted, so `waits` is 0; what `roofline` may choose is a program each, and the host waits for
it once, behind it. MuLo-SD is three programs: draft and repair run many times a picture. `--curves` writes a cost curve
for each machine and model, which `underpaint simulate sweep --machines FILE` reads. `--batches` counts cycles of so
many images each, of LlamaGen-XL at 384 px; `--quantization` those of quantised models. The last line is JSON.
"""

import json
import os
from collections.abc import Sequence
from dataclasses import asdict, replace
from itertools import product
from pathlib import Path
from typing import Any, Final

from benchmarks.report import at_least, finish, options, parse, refusing
from underpaint.artifacts.cost_curve import FORMAT
from underpaint.artifacts.files import check_file_writable
from underpaint.artifacts.manifest import write_beside

ROWS: Final = ("h200", "h100", "a100")
CURVES: Final = ("h200", "a100")
"""Machines of the curves that the simulator reads; `ROWS` are those of the table."""
SIZES: Final = (1, 2, 4, 8, 16, 32, 60)
FRONTIERS: Final = (1, 2, 4, 6, 8, 10)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = options("device_program", __doc__)
    parser.add_argument("--curves", type=Path, help="folder for cost curves that the simulator reads")
    parser.add_argument("--machines", default=",".join(ROWS), help="of the table, with commas between")
    parser.add_argument("--methods", help="count these methods alone, with commas between; without `--curves`")
    parser.add_argument("--batches", nargs="+", type=at_least(1), help="images in a cycle of LlamaGen-XL at 384 px")
    parser.add_argument("--quantization", choices=("int8", "fp8"), help="of the layers' weights")
    args = parse(parser, arguments)
    if args.curves is not None and (args.batches or args.methods or args.quantization):
        parser.error("cost curves are of one image and of all methods; leave out --batches, --methods, --quantization")
    if args.curves is not None:
        with refusing(parser):
            args.curves.mkdir(parents=True, exist_ok=True)
            check_file_writable(args.curves / "device-h200-llamagen-xl.json")
    from tools.compile_ahead import MACHINES, compile_for
    from tools.device_programs import Program, count_cycle, count_islands, figures_of, limits_of
    from tools.device_sizes import (
        CHOICES,
        METHODS,
        SEVEN_B,
        XL,
        chain_of,
        eagle2_of,
        islands_of,
        method_of,
        roofline_of,
    )
    from underpaint.artifacts.decoder_config import DecoderConfig
    from underpaint.runtime.device.launch import OVERLAP
    from underpaint.sim.latency.machines import MACHINES as KNOWN

    if os.environ.get(OVERLAP, "1") != "1":
        parser.error(f"{OVERLAP}: expected it to be unset, as the times without dependent launches are counted anyway")
    models: dict[str, DecoderConfig] = {"llamagen-xl": XL, "7b": SEVEN_B}
    if args.batches is not None:
        models = {"llamagen-xl at 384 px": replace(XL, grid_side=24)}
    kind = args.quantization
    models = {f"{name}, {kind} weights" if kind else name: config for name, config in models.items()}
    rows: list[dict[str, Any]] = []

    kernels: dict[tuple[Any, ...], dict[str, Any]] = {}
    names = list(METHODS) if args.methods is None else args.methods.split(",")
    machines = args.machines.split(",")
    for option, values, choices in (("--methods", names, METHODS), ("--machines", machines, MACHINES)):
        if unknown := [name for name in values if name not in choices]:
            parser.error(f"{option}: there is no {', '.join(unknown)}; known: {', '.join(choices)}")

    def part_ms(program: Program, part: str, gpu: str) -> float:
        return program.part_ms(KNOWN[gpu], {part}, MACHINES[gpu])

    for (model, config), batch in product(models.items(), args.batches or [1]):
        methods = {name: method_of(name, config.vocab_size) for name in names}
        programs = {name: count_cycle(config, how, batch, quantization=kind) for name, how in methods.items()}
        chosen, parts = dict[str, Program](), dict[str, Program]()
        if args.methods is None and args.batches is None and kind is None:  # `roofline` chooses for one image only
            for name, choice in CHOICES.items():
                chosen[f"roofline, {name}"] = count_cycle(config, roofline_of(1.0), batch, choice=choice)
            for name, program in count_islands(config, islands_of(config.vocab_size, "islands"), batch).items():
                parts[f"mulo-islands, {name}"] = program
        for name, program in {**programs, **chosen, **parts}.items():
            outside = [node for node in program.nodes if not node.part]
            row: dict[str, Any] = {
                "model": model,
                "method": name,
                "batch": batch,
                "nodes": len(program.nodes),
                "outside_nodes": len(outside),
                "waits": int(name in chosen),
                "bytes": sum(node.bytes for node in program.nodes),
                "outside_bytes": sum(node.bytes for node in outside),
            }
            for machine in machines:
                predicted = figures_of(program, KNOWN[machine], MACHINES[machine])
                row |= {f"{machine}_{name}": ms for name, ms in predicted.items()}
            row |= limits_of(program, KNOWN[machines[0]], MACHINES[machines[0]])
            rows.append(row)
            for launch in program.launches:
                kernel = compile_for(launch, MACHINES[machines[0]])
                kernels.setdefault((model, *kernel), {"model": model, **kernel._asdict()})
        if args.curves is None:
            continue
        chains = {size: count_cycle(config, chain_of(size - 1, config.vocab_size), 1) for size in SIZES[1:]}
        shallow = count_cycle(config, eagle2_of(1, 10, config.vocab_size), 1)
        levels = {width: count_cycle(config, eagle2_of(2, width, config.vocab_size), 1) for width in FRONTIERS}
        for gpu in CURVES:
            plain = {"target_ms": part_ms(programs["ar"], "target", gpu)}
            plain["host_ms"] = part_ms(programs["ar"], "", gpu)
            verify = [[1, plain["target_ms"]]]
            verify += [[size, part_ms(chains[size], "target", gpu)] for size in SIZES[1:]]
            root = part_ms(shallow, "drafter", gpu)
            draft = [[width, part_ms(counted, "drafter", gpu) - root] for width, counted in levels.items()]
            host = {}
            for family, deep, pooled in (("ranked", "eagle2", "lantern"), ("sampled", "eagle1", "lantern-eagle1")):
                whole, one = (part_ms(counted, "", gpu) for counted in (programs[deep], shallow))
                level = (whole - one) / 4
                more = max(0.0, part_ms(programs[pooled], "", gpu) - whole)
                host[family] = {"cycle": one - level, "level": level, "node": 0.0, "pooled": more}
            curve = {
                "format": FORMAT,
                "model": {"target": model, "engine": f"counted, {gpu}"},
                "verify_ms": verify,
                "draft_ms": draft,
                "overhead_ms": host["ranked"]["cycle"] + 5 * host["ranked"]["level"],
                "in_cycle": {
                    "plain": plain,
                    "target_ms": verify,
                    "draft_ms": draft,
                    "chain_ms": [],
                    "host_ms": host,
                },
            }
            place = args.curves / f"device-{gpu}-{model}.json"
            write_beside(place, (json.dumps(curve, indent=1) + "\n").encode())
    for row in rows:
        print(
            f"{row['model']:12s} {row['method']:16s} batch {row['batch']:2d}: {row['nodes']:4d} nodes, "
            f"{row['outside_nodes']:3d} outside the models; "
            + ", ".join(
                f"{name} {row[f'{name}_ms']:.3f} ms ({row[f'{name}_outside_ms']:.3f} outside)" for name in machines
            )
        )
    for one in kernels.values():
        print(
            f"{one['model']:12s} {one['name']:24s} {one['programs']:5d} programs of {one['warps']:2d} warps, "
            f"{one['registers']:3d} registers, {one['stack']:3d} bytes of stack, {one['slots']:7d} slots a warp, "
            f"{one['bytes'] / 1e6:8.2f} MB"
        )
    machine_figures = {name: asdict(KNOWN[name]) for name in machines}
    finish({"rows": rows, "kernels": [*kernels.values()], "machines": machine_figures}, args.out)


if __name__ == "__main__":
    os.environ.setdefault(
        "UNDERPAINT_TRITON", "compile"
    )  # before the device runtime is imported, in this process alone
    main()

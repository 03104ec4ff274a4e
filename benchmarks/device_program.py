"""What a cycle on the device is made of, and the least time that it implies: a prediction, made without a GPU.

Run: python -m benchmarks.device_program [--curves FOLDER]

Every method's cycle at LlamaGen-XL's and a 7B model's sizes is run on tensors without numbers. Each node of its graph
is charged 2 microseconds and its bytes at the machine's nominal bandwidth. Weights are bfloat16, the head float32,
guidance a pair of rows, half of the picture cached. The bound leaves out compute and whatever a kernel wastes, so a GPU
is slower. A program that waits for the device cannot be counted, so `waits` is 0; what `roofline` may choose is a
program each, and the host waits for it once, behind it. MuLo-SD is three programs: draft and repair run many times a
picture. `--curves` writes a cost curve for each machine and model, which `underpaint simulate run --machines FILE`
reads. The last line is JSON.
"""

import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from benchmarks.report import finish, options, parse, refusing
from underpaint.artifacts.cost_curve import FORMAT
from underpaint.artifacts.files import check_file_writable
from underpaint.artifacts.manifest import write_beside

NODE_US: Final = 2.0
BANDWIDTHS: Final = {"h200": 4800.0, "a100": 2039.0}
"""GB/s of `sim.latency.machines`."""
SIZES: Final = (1, 2, 4, 8, 16, 32, 60)
FRONTIERS: Final = (1, 2, 4, 6, 8, 10)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = options("device_program", __doc__)
    parser.add_argument("--curves", type=Path, help="folder for cost curves that the simulator reads")
    asked = parse(parser, arguments)
    if asked.curves is not None:
        with refusing(parser):
            asked.curves.mkdir(parents=True, exist_ok=True)
            check_file_writable(asked.curves / "device-h200-llamagen-xl.json")
    from tools.device_programs import Program, count_cycle, count_islands
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

    models: dict[str, DecoderConfig] = {"llamagen-xl": XL, "7b": SEVEN_B}
    rows: list[dict[str, Any]] = []

    def part_ms(program: Program, part: str, bandwidth: float) -> float:
        nodes = [node for node in program.nodes if node.part == part]
        return len(nodes) * NODE_US * 1e-3 + sum(node.bytes for node in nodes) / (bandwidth * 1e6)

    for model, config in models.items():
        programs = {name: count_cycle(config, method_of(name, config.vocab_size), batch=1) for name in METHODS}
        chosen = {
            f"roofline, {name}": count_cycle(config, roofline_of(1.0), 1, choice=choice)
            for name, choice in CHOICES.items()
        }
        staged = count_islands(config, islands_of(config.vocab_size, "islands"), batch=1)
        parts = {f"mulo-islands, {name}": program for name, program in staged.items()}
        for name, program in {**programs, **chosen, **parts}.items():
            outside = [node for node in program.nodes if not node.part]
            row: dict[str, Any] = {
                "model": model,
                "method": name,
                "nodes": len(program.nodes),
                "outside_nodes": len(outside),
                "waits": int(name in chosen),
                "bytes": sum(node.bytes for node in program.nodes),
                "outside_bytes": sum(node.bytes for node in outside),
            }
            for machine, bandwidth in BANDWIDTHS.items():
                row[f"{machine}_outside_ms"] = program.bound_ms(bandwidth, NODE_US, forwards=False)
                row[f"{machine}_ms"] = row[f"{machine}_outside_ms"] + program.bound_ms(
                    bandwidth, NODE_US, forwards=True
                )
            rows.append(row)
        if asked.curves is None:
            continue
        chains = {size: count_cycle(config, chain_of(size - 1, config.vocab_size), 1) for size in SIZES[1:]}
        shallow = count_cycle(config, eagle2_of(1, 10, config.vocab_size), 1)
        levels = {width: count_cycle(config, eagle2_of(2, width, config.vocab_size), 1) for width in FRONTIERS}
        for machine, bandwidth in BANDWIDTHS.items():
            plain = {"target_ms": part_ms(programs["ar"], "target", bandwidth)}
            plain["host_ms"] = part_ms(programs["ar"], "", bandwidth)
            verify = [[1, plain["target_ms"]]]
            verify += [[size, part_ms(chains[size], "target", bandwidth)] for size in SIZES[1:]]
            root = part_ms(shallow, "drafter", bandwidth)
            draft = [[width, part_ms(made, "drafter", bandwidth) - root] for width, made in levels.items()]
            host = {}
            for family, deep, pooled in (("ranked", "eagle2", "lantern"), ("sampled", "eagle1", "lantern-eagle1")):
                whole, one = (part_ms(made, "", bandwidth) for made in (programs[deep], shallow))
                level = (whole - one) / 4
                more = max(0.0, part_ms(programs[pooled], "", bandwidth) - whole)
                host[family] = {"cycle": one - level, "level": level, "node": 0.0, "pooled": more}
            curve = {
                "format": FORMAT,
                "model": {"target": model, "engine": f"counted, {machine}"},
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
            place = asked.curves / f"device-{machine}-{model}.json"
            write_beside(place, (json.dumps(curve, indent=1) + "\n").encode())
    for row in rows:
        print(
            f"{row['model']:12s} {row['method']:16s} {row['nodes']:4d} nodes, {row['outside_nodes']:3d} outside the "
            f"models; H200 {row['h200_ms']:.3f} ms ({row['h200_outside_ms']:.3f} outside), A100 {row['a100_ms']:.3f} ms"
        )
    finish({"rows": rows, "node_us": NODE_US, "bandwidth_gb_s": BANDWIDTHS}, asked.out)


if __name__ == "__main__":
    os.environ.setdefault(
        "UNDERPAINT_TRITON", "compile"
    )  # before the device runtime is imported, in this process alone
    main()

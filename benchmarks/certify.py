"""Does `underpaint certify` catch every known slip, and pass every verifier that is right?

Run: python -m benchmarks.certify [--runs 200] [--cases 12] [--jobs 2]

Every wrong verifier of the gallery is judged on every kind of trees on which it shows, as the command judges it. Then
right ones (the walk with nothing exchanged, this project's lossless rules, the public samplers written anew) are judged
in turn, each run with other cases.
The last line is JSON: `missed` (wanted: none), `unnamed` (caught, but not recognised as what it is; wanted: none),
`slowest_s` (wanted: < 60), `false_alarms` (wanted: none in 200 runs), and the seconds of each.
"""

import sys
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from itertools import cycle, islice
from typing import Any, NamedTuple

from benchmarks.report import at_least, finish, options, parse
from underpaint.algos.accept import RULES
from underpaint.algos.tree import DRAWN, Drawn
from underpaint.sim.certify.adapters import Spec, drawn_by, needs_chain, open_verifier
from underpaint.sim.certify.certificate import certify
from underpaint.sim.certify.measurement import Effort
from underpaint.sim.certify.public_samplers import EXAMPLES
from underpaint.sim.certify.session_slips import SESSION_SLIPS, SESSIONS
from underpaint.sim.certify.slips import BY_NAME, SLIPS


class Task(NamedTuple):
    target: str
    drawn: Drawn
    seed: int
    cases: int


class Judged(NamedTuple):
    task: Task
    lossless: bool
    seconds: float
    names: tuple[str, ...]


def judged(task: Task) -> Judged:
    spec = Spec(task.target)
    slip = SESSIONS.get(task.target.removeprefix("gallery:"))
    effort = Effort(seed=task.seed, cycles=slip.cycles if slip else 1)
    found = certify(open_verifier(spec), task.drawn, needs_chain(spec), task.cases, task.seed, effort)
    return Judged(task, found.lossless, found.seconds, found.looks_like.names if found.looks_like else ())


def wrong_ones() -> Iterator[Task]:
    for slip in SLIPS:
        for drawn in sorted(slip.drawn):
            yield Task(f"gallery:{slip.name}", drawn, 0, 24)
    for session in SESSION_SLIPS:
        yield Task(f"gallery:{session.name}", "iid", 0, 6)
    for name, example in EXAMPLES.items():
        if example.report:
            yield Task(f"gallery:{name}", drawn_by(Spec(f"gallery:{name}")), 0, 24)


def right_ones(runs: int, cases: int) -> Iterator[Task]:
    rules = [rule for rule in RULES if rule.promise == "lossless" and not rule.greedy]
    kinds: list[tuple[str, Drawn]] = [("gallery:right", drawn) for drawn in DRAWN]
    kinds.append(("gallery:right-session", "iid"))
    kinds += [(f"rule:{rule.name}", drawn) for rule in rules for drawn in sorted(rule.drawn)]
    kinds += [
        (target, drawn_by(Spec(target)))
        for target in (f"gallery:{name}" for name, example in EXAMPLES.items() if not example.report)
    ]
    for seed, (target, drawn) in enumerate(islice(cycle(kinds), runs), start=1):
        yield Task(target, drawn, seed, cases)


def main(arguments: list[str] | None = None) -> None:
    parser = options("certify", __doc__)
    parser.add_argument("--runs", type=at_least(0), default=200, help="runs of right verifiers")
    parser.add_argument("--cases", type=at_least(1), default=12, help="cases a run of a right verifier")
    parser.add_argument("--wrong", type=at_least(0), default=None, help="wrong verifiers to judge; default: all")
    parser.add_argument("--jobs", type=at_least(1), default=2, help="processes")
    asked = parse(parser, arguments)
    tasks = [*islice(wrong_ones(), asked.wrong), *right_ones(asked.runs, asked.cases)]
    found: list[Judged] = []
    with ProcessPoolExecutor(asked.jobs) as pool:
        for one in pool.map(judged, tasks):
            found.append(one)
            print(f"\r{len(found)} of {len(tasks)}", end="", file=sys.stderr, flush=True)
    print(file=sys.stderr)
    wrong, right = found[: len(tasks) - asked.runs], found[len(tasks) - asked.runs :]
    finish(figures(wrong, right), asked.out)


def figures(wrong: list[Judged], right: list[Judged]) -> dict[str, Any]:
    def shown(one: Judged) -> str:
        return f"{one.task.target} {one.task.drawn} seed {one.task.seed}"

    by_name = [one for one in wrong if one.task.target.removeprefix("gallery:") in {**BY_NAME, **SESSIONS}]
    return {
        "benchmark": "certify",
        "wrong": len(wrong),
        "missed": [shown(one) for one in wrong if one.lossless],
        "unnamed": [shown(one) for one in by_name if one.task.target.removeprefix("gallery:") not in one.names],
        "slowest_s": max((one.seconds for one in wrong), default=None),
        "right": len(right),
        "false_alarms": [shown(one) for one in right if not one.lossless],
        "slowest_right_s": max((one.seconds for one in right), default=None),
        "rows": [
            {
                "verifier": one.task.target,
                "drawn": one.task.drawn,
                "seconds": round(one.seconds, 2),
                "looks_like": list(one.names),
            }
            for one in wrong
        ],
    }


if __name__ == "__main__":
    main()

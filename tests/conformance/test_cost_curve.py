"""The benchmark whose curve policies and simulations read."""

import json
from pathlib import Path

import pytest

from benchmarks.cost_curve import main
from benchmarks.in_cycle import Found, Kind, host_costs
from tests.benchmarks.ending import figures
from tests.conformance.conftest import CONFIG, Models
from underpaint.algos.draft.costs import CostCurve
from underpaint.artifacts.cost_curve import read_cost_curve


def test_the_curve_is_written_in_the_form_that_policies_read(
    models: Models, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    options = ["--target", "target", "--drafter", "drafter", "--folder", str(models.folder), "--rounds", "2"]
    options += ["--cycle-rounds", "2", "--top-k", "5", "--threads", "1"]
    found = figures(main, options, tmp_path, capsys)
    assert found["model"] == {"target": "target", "drafter": "drafter", "rows": 1}
    assert [count for count, _ in found["verify_ms"]] == [1, 2, 3, 4, 5, 6, CONFIG.cells // 2]
    curve = CostCurve(tuple((int(count), ms) for count, ms in found["verify_ms"]), found["draft_ms"][0][1])
    assert curve.draft_ms > 0
    spread = found["verify_spread_ms"]
    for at, (_, median) in enumerate(found["verify_ms"]):
        assert spread["least"][at][1] <= spread["p10"][at][1] <= median <= spread["p90"][at][1]
        assert 0 < spread["graph"][at][1] <= spread["p90"][at][1]
    out = tmp_path / "curve.json"
    out.write_text(json.dumps(found))
    costs = read_cost_curve(out).in_cycle
    assert costs is not None
    assert costs.plain_ms > costs.plain_target_ms > 0
    assert costs.host.keys() - {"cost_aware_chain"} == {"one_call", "sampled", "ranked", "cost_aware"}, (
        "what pays is up to the engine"
    )
    assert {1, 2, 3, 5} <= dict(costs.target).keys()
    assert {1, 2} <= dict(costs.draft).keys()
    assert {1, 2, 4} <= dict(costs.chain).keys()
    assert {1, 2} <= dict(costs.tree).keys()
    in_grid = read_cost_curve(out).in_grid
    assert in_grid[0][0] == 1
    assert in_grid[-1][0] == CONFIG.cells - 1  # a whole draft, its last cell never fed
    assert all(ms > 0 for _, ms in in_grid)
    for host in costs.host.values():
        assert host.cycle + host.level + host.node > 0


def timed(family: str, levels: int, nodes: int, pooled: bool) -> float:
    own = {"ranked": 0.3, "cost_aware": 0.6, "cost_aware_chain": 0.5}[family]
    return own + 0.2 * levels + 0.01 * nodes + (0.5 if pooled else 0.0)


def test_the_host_is_split_into_what_it_is_made_of() -> None:
    found = Found()
    shapes = [(1, 2), (2, 5), (4, 7), (4, 13), (0, 1)]
    for family in ("ranked", "cost_aware", "cost_aware_chain"):
        for levels, nodes in shapes:
            for pooled in (False, True):
                ms = timed(family, levels, nodes, pooled)
                if (family, levels) == ("ranked", 0):  # an image's last cell is no part of a cycle that drafts
                    ms = 9.0
                found.host[Kind(family, levels, nodes, pooled)].extend([ms] * 20 + [50.0])
    found.host[Kind("ranked", 3, 6, False)].append(99.0)  # too few to count
    found.host[Kind("cost_aware_chain", 3, 6, False)].append(
        timed("cost_aware_chain", 3, 6, False)
    )  # a policy's own choice counts
    for family, own in (("ranked", 0.3), ("cost_aware", 0.6), ("cost_aware_chain", 0.5)):
        costs = host_costs(found, family)
        assert costs == pytest.approx({"cycle": own, "level": 0.2, "node": 0.01, "pooled": 0.5}, abs=1e-4)
    falling = Found()
    for levels in (1, 2, 3):
        falling.host[Kind("ranked", levels, levels + 1, False)].extend([1.0 - 0.1 * levels] * 10)
    assert min(host_costs(falling, "ranked").values()) == 0.0
    with pytest.raises(ValueError, match="too few cycles of 'sampled'"):
        host_costs(falling, "sampled")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--folder", "nowhere"], "there is no model 'target64'"),
        (["--cycle-rounds", "-1"], "expected a whole number from 0, got '-1'"),
        (["--guidance", "nan"], "guidance"),
    ],
)
def test_bad_arguments_are_named(arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stopped:
        main(arguments)
    assert stopped.value.code == 2
    assert message in capsys.readouterr().err

"""The Jacobi family as methods: what is lossless draws the target's distribution; bad settings are refused."""

import re

import pytest

from tests.cli.synthetic_pipeline import SyntheticPipeline
from tests.exact.distributions import whole_images
from tests.exact.test_jacobi import refills
from underpaint.algos.chance import Chance, enumerate_outcomes, scripted
from underpaint.algos.coupling import noise_of
from underpaint.algos.enumeration import total_variation
from underpaint.algos.protocols import Grid
from underpaint.algos.rows import SamplingParams
from underpaint.algos.step import Target
from underpaint.runtime.conditions import Condition, parse_condition
from underpaint.runtime.drawing import draw
from underpaint.runtime.engines.engine import PassTimer
from underpaint.runtime.methods.method import Timed
from underpaint.runtime.methods.registry import METHODS, build_method, resolve
from underpaint.runtime.methods.windows.method import JacobiConfig, JacobiMethod
from underpaint.runtime.pipeline import Pipeline
from underpaint.sim.synthetic.models import RandomDistribution, SyntheticTarget

PIPELINE = SyntheticPipeline()
TABLES = PIPELINE.tables
NAMES = [spec.name for spec in METHODS if spec.tuned.sampled.family == "jacobi"]
LOSSLESS = [name for name in NAMES if name not in ("gsd", "pjd", "sjd-sv", "sjd++")]
PROMPT = parse_condition("a fox, an owl", "prompt_grammar")


class OneTarget(SyntheticPipeline):
    """Models of which methods may take one target."""

    def __init__(self, target: SyntheticTarget) -> None:
        self.drawn_by = target

    def target(self, condition: Condition, sampling: SamplingParams) -> Timed[Target]:
        return Timed(self.drawn_by, PassTimer())


@pytest.fixture(scope="module")
def shipped() -> Pipeline:
    return Pipeline.open(resolution=128)


@pytest.mark.parametrize("preset", ["tuned", "paper"])
@pytest.mark.parametrize("name", LOSSLESS)
def test_lossless_ones_draw_ars_tokens_at_temperature_zero(name: str, preset: str) -> None:
    cold = SamplingParams(temperature=0.0)
    plain = draw(PIPELINE, build_method("ar", resolve("ar", 0.0), TABLES), cold, PROMPT, 0)
    settings = ["window=9"] if preset == "paper" else []
    built = build_method(name, resolve(name, 0.0, None, settings, preset), TABLES)
    drawing = draw(PIPELINE, built, cold, PROMPT, 0)
    assert built.lossless
    assert drawing.tokens == plain.tokens
    assert drawing.target_nfe <= plain.target_nfe
    assert drawing.accepted is not None
    assert sum(drawing.accepted) + drawing.target_nfe == len(drawing.tokens)


@pytest.mark.parametrize(
    ("preset", "prompts"),
    [
        ("tuned", ("a fox left of a stone owl", "a drum above a crab", "a pizza behind a frog")),
        ("paper", ("a whale behind a crab",)),
    ],
)
def test_a_window_with_candidates_draws_ars_tokens_on_the_shipped_models(
    shipped: Pipeline, preset: str, prompts: tuple[str, ...]
) -> None:
    cold = SamplingParams(guidance=2.0, temperature=0.0)
    plain, with_tree = (
        build_method(name, resolve(name, 0.0, preset=preset), shipped.tables) for name in ("ar", "sjd-pac")
    )
    for prompt in map(shipped.condition, prompts):
        expected, actual = (draw(shipped, built, cold, prompt, 0) for built in (plain, with_tree))
        assert actual.tokens == expected.tokens
        assert actual.target_nfe < expected.target_nfe / 2


@pytest.mark.parametrize(
    ("grid", "refill"), [(grid, refill) for grid in (Grid(2, 2), Grid(1, 5)) for refill in refills(grid)], ids=str
)
@pytest.mark.parametrize("name", LOSSLESS)
def test_lossless_ones_draw_exactly_the_targets_distribution(name: str, grid: Grid, refill: str) -> None:
    model = RandomDistribution(2, seed=7, sharpness=1.5)
    config = resolve(name, 1.0, None, ["window=2", f"refill={refill}"])
    method = config.build(name, TABLES)

    def program(chance: Chance) -> tuple[int, ...]:
        session = method.open(OneTarget(SyntheticTarget(model, grid)), PROMPT, SamplingParams())
        return tuple(session.decode(chance).tokens.tolist())

    assert total_variation(enumerate_outcomes(program), whole_images(model, grid)) < 1e-12


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("preset", ["tuned", "paper"])
def test_the_same_seed_draws_the_same_picture_and_another_one_another(name: str, preset: str) -> None:
    small = ["window=3", "lead=2"] if name == "pjd" else ["window.window=5"]
    built = build_method(name, resolve(name, 1.0, None, small, preset), TABLES)
    tokens = [draw(PIPELINE, built, SamplingParams(), PROMPT, seed).tokens for seed in (0, 0, 1)]
    assert tokens[0] == tokens[1] != tokens[2]


@pytest.mark.parametrize(
    ("name", "rule", "settings", "message"),
    [
        ("scd-maximal", "block", [], "looks at the drafts behind a token"),
        ("scd-gumbel", "block", [], "looks at the drafts behind a token"),
        ("sjd", "greedy", [], "chain of drawn tokens"),
        ("sjd", "chian", [], "there is no 'chian'"),
        ("pjd", "chain", [], "leave it out"),
        ("sjd", None, ["window=0"], "length must be at least 1"),
        ("sjd", None, ["coupling=gumble"], "coupling"),
        ("sjd", None, ["refill=right"], "refill"),
        ("sjd", None, ["lenght=3"], "unknown setting 'lenght'"),
        ("gsd", None, ["window=3"], "both the window's and the rule's; write window.window or rule.window"),
        ("gsd", None, ["group=0"], "group"),
        ("sjd", None, ["window=100"], "set window=31 or less"),
        ("sjd-pac", None, ["window=30", "candidates=3"], "set window=29 or less"),
        (
            "sjd-pac",
            None,
            ["candidates=9", "levels=2"],
            "needs passes of 105 positions, these models take 32; set fewer",
        ),
        ("sjd-pac", None, ["levels=17"], "levels must be at most the window's 16 drafts"),
        ("sjd-pac", None, ["candidates=0"], "candidates must be at least 1"),
        ("sjd-pac", "chain", [], "does not fit 2 candidates a cell"),
        ("sjd-pac", "traversal", ["coupling=independent"], "looks at the drafts behind a token"),
        ("sjd-pac", None, ["rule=traversal", "coupling=independent"], "does not fit 2 candidates a cell"),
        ("scd-maximal", None, ["candidates=2"], "rule 'chain' does not fit 2 candidates a cell"),
        ("pjd", None, ["lead=99"], "expected lead in 1..4"),
        ("pjd", None, ["window=0"], "window must be at least 1, got 0"),
        ("pjd", None, ["redraw=none"], "redraw"),
    ],
)
def test_what_does_not_fit_is_refused_with_the_reason(
    name: str, rule: str | None, settings: list[str], message: str
) -> None:
    with pytest.raises(ValueError, match=re.escape(message)):
        build_method(name, resolve(name, 1.0, rule, settings), TABLES).open(PIPELINE, PROMPT, SamplingParams())


def test_another_rule_and_what_it_promises() -> None:
    assert resolve("sjd", 1.0, "block").build("sjd", TABLES).lossless
    assert not resolve("gsd", 1.0).build("gsd", TABLES).lossless
    assert resolve("gsd", 1.0, None, ["group=1"]).build("gsd", TABLES).lossless
    config = resolve("gsd", 1.0, None, ["rule.window=released", "window.window=4"])
    assert isinstance(config, JacobiConfig)
    assert (config.window.length, config.rule_settings["window"]) == (4, "released")
    assert config.to_dict()["rule_settings"]["group"] == 50


def test_candidates_are_a_setting_of_every_window() -> None:
    assert resolve("sjd-pac", 1.0, None, ["candidates=1", "rule=chain"]).build("sjd-pac", TABLES).lossless
    assert resolve("sjd", 1.0, None, ["candidates=3", "rule=without_replacement"]).build("sjd", TABLES).lossless
    assert not resolve("gsd", 1.0, None, ["candidates=2"]).build("gsd", TABLES).lossless
    paper = resolve("sjd-pac", 1.0, preset="paper").build("sjd-pac", TABLES)
    assert isinstance(paper, JacobiMethod)
    assert paper.config.window.nodes == 64
    plain, none_beside = (
        draw(PIPELINE, build_method("x", resolve(name, 1.0, None, settings), TABLES), SamplingParams(), PROMPT, 4)
        for name, settings in (("scd-maximal", ["window=6"]), ("sjd-pac", ["window=6", "candidates=1"]))
    )
    assert plain.tokens == none_beside.tokens


def test_recorded_uniforms_hold_no_noise_of_cells() -> None:
    with pytest.raises(ValueError, match="recorded uniforms"):
        noise_of(scripted({}))


def test_the_rule_is_a_setting_wherever_it_stands() -> None:
    for settings in (["rule=gsd", "group=3"], ["group=3", "rule=gsd"]):
        config = resolve("sjd", 1.0, None, settings)
        assert isinstance(config, JacobiConfig)
        assert (config.rule, config.rule_settings, config.window.length) == ("gsd", {"group": 3}, 8)
    with pytest.raises(ValueError, match="looks at the drafts behind a token"):
        resolve("scd-maximal", 1.0, None, ["rule=block"])
    assert resolve("pjd", 1.0).acceptance is None
    assert resolve("sjd", 1.0).acceptance == ("chain", {})


@pytest.mark.parametrize(("name", "length"), [("sjd", 15), ("scd-maximal", 31), ("scd-gumbel", 31), ("gsd", 15)])
def test_the_papers_settings_run_the_released_loop(name: str, length: int) -> None:
    """Its window counts the committed token, keeps the last row's sample and scores a random token as certain."""
    config = resolve(name, 1.0, preset="paper")
    assert isinstance(config, JacobiConfig)
    assert (config.window.length, config.window.last_row, config.window.refill) == (length, True, "random")
    assert config.to_dict()["settings"]["last_row"] is True
    without = resolve(name, 1.0, None, ["last_row=false"], "paper")
    assert isinstance(without, JacobiConfig)
    assert not without.window.last_row

import numpy as np
import pytest

from tests.cli.synthetic_pipeline import SyntheticPipeline
from underpaint.algos.accept import RULES
from underpaint.algos.accept.neighbours import nearest_codes
from underpaint.algos.draft import POLICIES
from underpaint.algos.rows import SamplingParams
from underpaint.api import compare
from underpaint.cli.options import read_preset
from underpaint.runtime.conditions import parse_condition
from underpaint.runtime.drawing import draw
from underpaint.runtime.methods.method import ModelTables
from underpaint.runtime.methods.registry import METHODS, build_method, resolve
from underpaint.runtime.methods.settings import settings_line, settings_of
from underpaint.runtime.protocol.tables import promise_of

FOX = parse_condition("a fox, an owl", "prompt_grammar")
PIPELINE = SyntheticPipeline()
CODES = PIPELINE.tables
EVERY = [method.name for method in METHODS]
TREES = [method for method in METHODS if method.tuned.sampled.family == "tree"]


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("name", EVERY)
def test_every_method_builds_at_both_temperatures(name, temperature):
    config = resolve(name, temperature)
    built = build_method(name, config, CODES)
    if config.family == "tree":
        assert RULES[config.rule].greedy == (temperature == 0)
    assert built.drafts == (name not in ("ar", "zipar", "zipar-adaptive"))
    relaxed = "lantern" in name or name in ("fly", "gsd", "pjd", "sjd-sv", "sjd++", "vvs")
    relaxed |= temperature > 0 and name in ("ensemble", "hsd")  # at 0 the rule is `greedy`
    assert built.lossless == (config.family != "grid" and not relaxed)


def test_the_line_of_settings_has_those_of_every_part():
    """What the column of sources names has a value."""
    skipping = settings_line(resolve("vvs", 1.0, settings=["skipping.every=3", "skipping.longest=3"]).to_dict())
    assert {"skipping.every=3", "skipping.longest=3"} <= set(skipping.split(", "))
    beside = settings_line(resolve("roofline", 1.0).to_dict())
    assert "drawn.chain=block, drawn.tree=without_replacement" in beside
    assert "window.coupling=maximal" in beside


@pytest.mark.parametrize("preset", ["tuned", "paper"])
def test_what_methods_promise(preset):
    promises = {"delayed": "lossless", "gbv": "lossless", "ensemble": "bounded", "lantern": "bounded"}
    promises |= dict.fromkeys(("fly", "hsd", "sjd-sv", "sjd++", "gsd", "vvs", "zipar", "roofline+lantern"), "no bound")
    for name, promise in promises.items():
        built = build_method(name, resolve(name, 1.0, preset=preset), CODES)
        assert promise_of(built.config.to_dict(), built.lossless) == promise, name


def test_the_controls_for_adt_tree_decide_as_it_does_and_never_adapt():
    for temperature in (0.0, 1.0):
        adt = METHODS["adt"].tuned.at(temperature)
        for name in ("adt-control-chain", "adt-control-tree"):
            control = METHODS[name].tuned.at(temperature)
            assert (control.policy, control.rule) == ("scheduled", adt.rule)
        assert control.policy_settings["total_tokens"] == adt.policy_settings["total_tokens"]


@pytest.mark.parametrize("preset", ["tuned", "paper"])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("name", [one.name for one in TREES if one.tuned.sampled.policy != "none"])
def test_a_policy_and_a_rule_by_name_start_from_the_settings_of_their_method(name, temperature, preset):
    config = METHODS[name].tuned.sampled
    actual = resolve(f"{config.policy}:{config.rule}", temperature, preset=preset)
    same = [
        one.preset(preset).at(temperature)
        for one in TREES
        if (one.tuned.sampled.policy, one.tuned.sampled.rule) == (config.policy, config.rule)
    ]
    assert actual == same[0]


def test_a_pair_that_is_no_method_takes_the_policys_settings():
    config = resolve("eagle2:lantern_pp", 1.0)
    assert config.policy_settings == resolve("eagle2", 1.0).policy_settings
    assert config.rule_settings == {}


@pytest.mark.parametrize(
    ("pair", "policy", "method"),
    [
        ("eagle1:ensemble", "static_top_k", "eagle1"),
        ("chain:multi_round", "chain_top1", "speculative"),
        ("eagle2:lantern_pp", "eagle2", "eagle2"),
    ],
)
def test_a_pair_that_is_no_method_takes_the_policys_greedy_variant_at_temperature_0(pair, policy, method):
    config = resolve(pair, 0.0)
    assert config.policy == policy
    assert config.policy_settings == resolve(method, 0.0).policy_settings


def test_the_released_residual_runs_at_the_published_k():
    """It zeroes one code more than it pools, and the table of near codes has no more columns than a paper pools."""
    codebook = np.arange(64.0)[:, None]
    tables = ModelTables(nearest_codes(codebook, 4), codebook)
    for name in ("lantern", "adt+lantern", "roofline+lantern", "vvs"):
        for preset in ("tuned", "paper"):
            if "residual" in METHODS[name].preset(preset).sampled.rule_settings:
                config = resolve(name, 1.0, settings=["residual=released"], preset=preset)
                assert build_method(name, config, tables).config.rule_settings.get("k") in (0, 3)


def test_a_papers_k_is_scaled_to_the_codebook():
    method = build_method("lantern", resolve("lantern", 1.0, preset="paper"), CODES)
    assert method.config.rule_settings["k"] == round(1000 * CODES.vocab_size / 16384)
    explicit = build_method("lantern", resolve("lantern", 1.0, settings=["k=7"], preset="paper"), CODES)
    assert explicit.config.rule_settings["k"] == 7


@pytest.mark.parametrize("preset", ["tuned", "paper"])
def test_every_setting_of_a_preset_has_a_source(preset):
    for method in METHODS:
        method_preset = method.preset(preset)
        sourced_names = {name.strip() for names in method_preset.sources for name in names.split(",")}
        config = method_preset.sampled
        settings = set(getattr(config, "policy_settings", {})) | set(getattr(config, "rule_settings", {}))
        everything = {"all"} & sourced_names
        assert everything or settings - {"residual"} <= sourced_names, (method.name, settings - sourced_names)
        assert all(len(source) > 10 for source in method_preset.sources.values())


def test_settings_are_read_as_their_types():
    config = resolve("adt+lantern", 1.0, settings=["beta=0.25", "max_depth=6", "delta=0.4", "nodes=proportional"])
    assert config.policy_settings["beta"] == 0.25
    assert config.policy_settings["max_depth"] == 6
    assert config.policy_settings["nodes"] == "proportional"
    assert config.rule_settings["delta"] == 0.4
    assert resolve("eagle1", 1.0, settings=["widths=2,3"]).policy_settings["widths"] == (2, 3)
    curve = resolve("roofline", 1.0, settings=["verify_ms=1:2.5,8:4"]).policy_settings["verify_ms"]
    assert curve == ((1, 2.5), (8, 4.0))


def test_a_recipe_is_written_down_with_every_setting():
    plain = resolve("adt+lantern", 1.0).to_dict()
    assert set(plain["policy_settings"]) == set(settings_of(POLICIES["adt"].make))
    assert set(plain["rule_settings"]) == {"k", "delta", "residual"}
    assert resolve("ar", 1.0).to_dict()["policy_settings"] == {}


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (["betta=1"], "unknown setting 'betta'.*'beta'"),
        (["beta=much"], "'beta' is a number, got 'much'"),
        (["max_depth=2.5"], "'max_depth' is a whole number"),
        (["nodes=some"], "one of fixed, proportional"),
        (["beta"], "expected name=value"),
        (["neighbours=1"], "unknown setting 'neighbours'"),
        (["rule.beta=1"], "unknown setting 'beta'"),
    ],
)
def test_bad_settings_are_named(settings, message):
    with pytest.raises(ValueError, match=message):
        resolve("adt+lantern", 1.0, settings=settings)


def test_a_setting_out_of_range_raises_when_built():
    config = resolve("eagle2", 1.0, settings=["depth=0"])
    with pytest.raises(ValueError, match="depth must be at least 1"):
        build_method("eagle2", config, CODES)


def test_an_unknown_method_suggests_the_nearest():
    with pytest.raises(ValueError, match="did you mean 'eagle2'"):
        resolve("eagel2", 1.0)


def test_a_rule_that_does_not_cover_the_trees_raises():
    with pytest.raises(ValueError, match="covers without_replacement trees"):
        resolve("eagle2", 1.0, rule="without_replacement")
    with pytest.raises(ValueError, match=r"covers (chains|iid)"):
        resolve("eagle2", 1.0, rule="block")


@pytest.mark.parametrize("rule", [spec for spec in RULES if not spec.greedy], ids=lambda spec: spec.name)
def test_a_rule_of_ones_own_gets_its_greedy_variant_at_zero(rule):
    fitting = next(spec for spec in POLICIES if spec.drawn in rule.drawn)
    name = next((one.name for one in TREES if one.tuned.greedy.policy == fitting.name), "eagle2")
    name = "speculative" if rule.needs_chain else name
    if rule.promise == "lossless":
        assert resolve(name, 0.0, rule=rule.name).rule == "greedy"
    elif rule.greedy_variant is not None:
        assert RULES[rule.greedy_variant].greedy
        assert resolve(name, 0.0, rule=rule.name).rule == rule.greedy_variant
    else:
        with pytest.raises(ValueError, match="no form at temperature 0"):
            resolve(name, 0.0, rule=rule.name)


def test_a_greedy_rule_above_zero_raises():
    with pytest.raises(ValueError, match="likeliest token"):
        resolve("eagle2", 1.0, rule="greedy")


def test_greedy_rules_read_the_distributions_at_temperature_one():
    greedy = SamplingParams(guidance=3.0, temperature=0.0, top_k=5)
    assert resolve("eagle2", 0.0).target_sampling(greedy) == SamplingParams(guidance=3.0)
    warm = SamplingParams(guidance=3.0, temperature=0.7, top_k=5)
    assert resolve("eagle2", 0.7).target_sampling(warm) == warm


@pytest.mark.parametrize(
    ("name", "settings", "lossless"),
    [
        ("lantern", ["delta=0.0", "residual=paper"], True),
        ("lantern", ["delta=0.0", "residual=standard"], True),
        ("lantern", ["delta=0.0", "residual=released"], False),
        ("lantern", ["delta=0.1", "residual=paper"], False),
        ("lantern++", ["factor=1.0"], True),
        ("lantern++", ["factor=1.0", "residual=released"], False),
    ],
)
def test_a_method_is_called_lossless_over_all_settings_of_its_rule(name, settings, lossless):
    config = resolve(name, 1.0, settings=settings)
    assert build_method(name, config, CODES).lossless == lossless


def test_no_setting_of_a_registered_part_is_unreadable():
    for spec in [*RULES, *POLICIES]:
        assert all(kind is not None for kind in settings_of(spec.make).values())


@pytest.mark.parametrize("rule", list(RULES), ids=lambda spec: spec.name)
def test_every_rule_draws_with_some_method(rule):
    temperature = 0.0 if rule.greedy else 1.0
    for method in TREES:
        config = method.tuned.at(temperature)
        if config.policy == "none":
            continue
        policy = POLICIES[config.policy]
        if policy.drawn in rule.drawn and (policy.chain or not rule.needs_chain):
            break
    else:
        pytest.fail(f"no method grows trees that '{rule.name}' covers")
    built = build_method(method.name, resolve(method.name, temperature, rule=rule.name), CODES)
    drawing = draw(PIPELINE, built, SamplingParams(temperature=temperature), FOX, 0)
    assert len(drawing.tokens) == PIPELINE.grid.cells


def test_row_fronts_take_settings_but_no_rule():
    config = resolve("zipar", 1.0, settings=["window=2", "adaptive=true"])
    assert config.to_dict() == {"loop": "zipar", "settings": {"window": 2, "adaptive": True}}
    with pytest.raises(ValueError, match="no rule applies"):
        resolve("zipar", 1.0, rule="lantern")
    with pytest.raises(ValueError, match="unknown setting 'windows'; did you mean 'window'"):
        resolve("zipar", 1.0, settings=["windows=2"])
    with pytest.raises(ValueError, match="an adaptive window needs one"):
        build_method("zipar", resolve("zipar", 1.0, settings=["window=none", "adaptive=true"]), CODES)
    with pytest.raises(ValueError, match="method 'zipar': window must be at least 1, got 0"):
        build_method("zipar", resolve("zipar", 1.0, settings=["window=0"]), CODES)
    built = build_method("zipar", resolve("zipar", 1.0, settings=["window=5"]), CODES)
    with pytest.raises(ValueError, match=r"window: expected 1..4 on a grid of 4 x 4"):
        built.open(PIPELINE, FOX, SamplingParams())


def test_the_preset_of_eagles_code_counts_its_first_level_too() -> None:
    """EAGLE's code runs depth 7, which leaves the first level out, and total_token 60, which counts the root."""
    tree = {"depth": 8, "top_k": 10, "total_tokens": 59}
    for temperature in (0.0, 1.0):
        assert resolve("eagle2", temperature, preset="eagle-code").to_dict()["policy_settings"] == tree
        for other in ("adt", "lantern", "zipar"):
            assert resolve(other, temperature, preset="eagle-code") == resolve(other, temperature, preset="paper")
    assert read_preset("eagle-code") == "eagle-code"


def test_settings_of_a_method_that_is_not_compared_are_refused():
    with pytest.raises(ValueError, match="settings: 'eagle-2' is not among the methods; did you mean 'eagle2'"):
        compare(PIPELINE, ["eagle2"], ["a fox, an owl"], settings={"eagle-2": ["depth=3"]})

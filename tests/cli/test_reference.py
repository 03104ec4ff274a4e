import numpy as np
import torch

from export.reference import real_scenes, write_reference
from export.store import Origin
from models.data.scenes import SpriteSheet
from models.judge import Judge, JudgeConfig
from runtime.quality import REFERENCE_KIND, load_reference
from zoo.load import locate
from zoo.prompts import CONCEPT_NAMES, STYLES


def made_up_sheet():
    rng = np.random.default_rng(0)
    sprites = np.zeros((len(CONCEPT_NAMES), len(STYLES), 8, 8, 4), dtype=np.uint8)
    sprites[..., 3] = 255
    sprites[..., :3] = rng.integers(0, 256, (*sprites.shape[:2], 1, 1, 3))
    return SpriteSheet(sprites)


def test_a_reference_is_written_with_its_manifest_and_reads_back(tmp_path):
    torch.manual_seed(0)
    judge = Judge(JudgeConfig(channels=(4, 4, 4, 4), features=6)).eval()
    sheet = made_up_sheet()
    write_reference(judge, sheet, tmp_path, Origin("made up", "a test"), count=12)
    located = locate("judge_reference", REFERENCE_KIND, tmp_path)
    for side in (64, 128):
        found = load_reference(located.path, side)
        wanted = real_scenes(judge, sheet, side, 12)
        np.testing.assert_allclose(found.features_a, wanted.features_a, rtol=1e-5)
        assert found.features_b.shape == (12, 6)
        assert not np.array_equal(found.features_a, found.features_b)
        assert 0.0 <= found.accuracy["concept_and_style"] <= 1.0

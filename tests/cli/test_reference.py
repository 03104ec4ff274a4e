import numpy as np
import pytest
import torch

from tests.training.sprites import made_up_sprites
from underpaint.export.store import Origin
from underpaint.export.vision import real_scenes, write_reference
from underpaint.models.judge import Judge, JudgeConfig
from underpaint.runtime.evaluation.quality import REFERENCE_KIND, load_reference, reference_name
from underpaint.training.data.textured_render import TexturedSheet
from underpaint.zoo.load import locate


def test_a_reference_is_written_with_its_manifest_and_reads_back(tmp_path):
    torch.manual_seed(0)
    judge = Judge(JudgeConfig(channels=(4, 4, 4, 4), features=6)).eval()
    sheet = TexturedSheet(made_up_sprites(48))
    write_reference(judge, sheet, tmp_path, Origin("made up", "a test"), count=12)
    located = locate("judge_reference", REFERENCE_KIND, tmp_path)
    for side in (64, 128):
        reference = load_reference(located.path, side)
        expected = real_scenes(judge, sheet, side, 12)
        np.testing.assert_allclose(reference.features_a, expected.features_a, rtol=1e-5)
        assert reference.features_b.shape == (12, 6)
        assert not np.array_equal(reference.features_a, reference.features_b)
        assert 0.0 <= reference.accuracy["things_and_finishes"] <= 1.0


def test_real_scenes_of_another_side_have_a_file_of_their_own(tmp_path):
    judge = Judge(JudgeConfig(channels=(4, 4, 4, 4), features=6)).eval()
    sheet, origin = TexturedSheet(made_up_sprites(48)), Origin("made up", "a test")
    write_reference(judge, sheet, tmp_path, origin, (256,), count=3)
    located = locate(reference_name(256), REFERENCE_KIND, tmp_path)
    assert located.manifest.settings["sides"] == [256]
    np.testing.assert_allclose(
        load_reference(located.path, 256).features_a, real_scenes(judge, sheet, 256, 3).features_a, rtol=1e-5
    )
    with pytest.raises(ValueError, match="no real scenes of 128 px in it"):
        load_reference(located.path, 128)
    assert reference_name(64) == reference_name(128) == "judge_reference"

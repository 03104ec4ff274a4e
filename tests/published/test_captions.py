"""Caption features by a tiny random T5 in the form that its authors publish."""

from pathlib import Path

import numpy as np
import pytest
import torch

from underpaint.models.published.captions import CaptionEncoder
from underpaint.models.published.files import CheckpointError

pytest.importorskip("transformers", reason="the extra 'chameleon' is not installed")


@pytest.fixture(scope="module")
def encoder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from tokenizers import Tokenizer
    from tokenizers.models import WordLevel
    from tokenizers.pre_tokenizers import Whitespace
    from transformers import PreTrainedTokenizerFast, T5Config, T5EncoderModel

    folder = tmp_path_factory.mktemp("t5")
    words = Tokenizer(WordLevel({"<unk>": 0, "a": 1, "red": 2, "cat": 3, "<pad>": 4}, unk_token="<unk>"))
    words.pre_tokenizer = Whitespace()
    PreTrainedTokenizerFast(tokenizer_object=words, unk_token="<unk>", pad_token="<pad>").save_pretrained(folder)
    torch.manual_seed(0)
    config = T5Config(vocab_size=5, d_model=12, d_kv=4, d_ff=16, num_layers=1, num_heads=2, pad_token_id=4)
    T5EncoderModel(config).save_pretrained(folder)
    return folder


def test_features_are_the_encoders_last_hidden_states(encoder: Path) -> None:
    from transformers import T5EncoderModel

    actual = CaptionEncoder(encoder).features("a red cat a")
    assert actual.shape == (4, 12)
    assert actual.dtype == np.float32
    with torch.no_grad():
        expected = T5EncoderModel.from_pretrained(encoder).eval()(torch.tensor([[1, 2, 3, 1]])).last_hidden_state[0]
    np.testing.assert_allclose(actual, expected.float().numpy(), atol=0.05)
    assert CaptionEncoder(encoder).features("a red cat a", most=2).shape == (2, 12)


def test_a_caption_that_cannot_be_encoded_is_refused(encoder: Path, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="expected a text"):
        CaptionEncoder(encoder).features(" ")
    with pytest.raises(FileNotFoundError, match="no text encoder"):
        CaptionEncoder(tmp_path / "none")
    with pytest.raises(CheckpointError, match="no T5 encoder"):
        CaptionEncoder(tmp_path).features("a cat")

"""A family of one's own, as docs/how-to/use-a-live-model.md shows it: a Llama that draws two codes."""

from underpaint.algos.draft.spec import Grid
from underpaint.algos.rows import SamplingParams
from underpaint.runtime.live.model import LiveModel

CODES = 2
FIRST_CODE = 8


def family(model, processor=None, *, grid=None, longest_prompt=16):
    table, weight = model.get_input_embeddings(), model.lm_head.weight[FIRST_CODE : FIRST_CODE + CODES]
    return LiveModel(
        family="tiny-llama",
        body=model.model,
        config=model.config,
        grid=grid or Grid(1, 3),
        codes=CODES,
        vocabulary=model.config.vocab_size,
        embed_codes=lambda codes: table(codes + FIRST_CODE),
        embed_ids=table,
        head=lambda hidden: hidden @ weight.T,
        sampling=SamplingParams(guidance=2.0),
        uncond=lambda ids: ids[-1:],
        image_start=(7,),
        longest_prompt=longest_prompt,
    )

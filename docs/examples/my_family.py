"""A model family of one's own: any causal decoder whose image codes are a block of its vocabulary."""

from underpaint import LiveModel
from underpaint.algos.draft import Grid
from underpaint.algos.rows import SamplingParams

FIRST_CODE, CODES, START = 8, 64, 7  # the id of code 0, how many codes there are, the id that begins a picture


def family(model, processor=None, *, grid=None, longest_prompt=256):
    table = model.get_input_embeddings()
    head = model.lm_head.weight[FIRST_CODE : FIRST_CODE + CODES]
    return LiveModel(
        family="my-family",
        body=model.model,  # called with inputs_embeds, a 4-D mask, position_ids and past_key_values
        config=model.config,
        grid=grid or Grid(8, 8),
        codes=CODES,
        vocabulary=model.config.vocab_size,
        embed_codes=lambda codes: table(codes + FIRST_CODE),
        embed_ids=table,
        head=lambda hidden: hidden @ head.T,  # logits of the codes alone
        sampling=SamplingParams(guidance=3.0, top_k=2000),  # as the authors publish it
        uncond=lambda ids: ids[-1:],  # the second row of guidance
        image_start=(START,),
        encode=lambda processor, text: [*processor(text)["input_ids"], START],
        longest_prompt=longest_prompt,
    )

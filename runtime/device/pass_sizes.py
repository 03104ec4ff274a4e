"""Which passes a method makes: the sizes that an engine of fixed shapes has to be built for.

They are read off the method's own program, run on tensors without numbers, so that no second list can differ from it.
"""

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode

from underpaint.algos.protocols import Grid
from underpaint.artifacts.decoder_config import DecoderConfig
from underpaint.artifacts.device_graph import DecoderPasses, PassSize
from underpaint.runtime.device.forms import BatchSizes, DeviceForm
from underpaint.runtime.device.forwards import Attend


class _Recorder:
    """A `DeviceDecoder` that computes nothing and remembers the sizes of its passes."""

    def __init__(self, config: DecoderConfig, rows: int, dtype: torch.dtype) -> None:
        self.config, self.rows, self.dtype, self.places = config, rows, dtype, 0
        self.fixed_batch = True
        self.layers, self.head = set[PassSize](), set[PassSize]()

    def embed(self, tokens: Tensor) -> Tensor:
        return torch.zeros(self.rows * tokens.shape[0], tokens.shape[1], self.config.dim, dtype=self.dtype)

    def draft_hidden(
        self, tokens: Tensor, features: Tensor, parents: Tensor | None, positions: Tensor, attend: Attend
    ) -> Tensor:
        return self.hidden(self.embed(tokens), positions, attend)

    def hidden(self, embeddings: Tensor, positions: Tensor, attend: Attend) -> Tensor:
        count, joined = embeddings.shape[1], attend.cache.joined
        assert joined is not None
        self.layers.add(PassSize(count, count, joined.shape[4]))
        return torch.zeros_like(embeddings)

    def logits(self, features: Tensor) -> Tensor:
        count = features.shape[1]
        self.head.add(PassSize(count, count, 0))
        return torch.zeros(features.shape[0], count, self.config.vocab_size)

    def found(self) -> DecoderPasses:
        return DecoderPasses(tuple(sorted(self.layers)), tuple(sorted(self.head)))


def passes_of(
    form: DeviceForm,
    target: DecoderConfig,
    drafter: DecoderConfig | None,
    grid: Grid,
    prefix: int,
    rows: int,
    batch: int,
    dtype: torch.dtype,
    line_token: int | None = None,
) -> tuple[DecoderPasses, DecoderPasses]:
    """The passes of target and drafter in a method's program, the condition's among them; see `DeviceCycle`.

    rows: of an image, 2 for a guidance pair.
    """
    device = torch.device("cpu")
    with FakeTensorMode(), torch.no_grad():
        verified = _Recorder(target, rows, dtype)
        drafted = None if drafter is None else _Recorder(drafter, rows, dtype)
        cycle = form.cycle(verified, drafted, BatchSizes(grid, prefix, batch, device, line_token))
        cycle.run()
    joined = cycle.state.target_cache.joined
    assert joined is not None
    conditions = DecoderPasses((PassSize(1, prefix, joined.shape[4]),), (PassSize(1, 1, 0),))
    return verified.found().joined(conditions), DecoderPasses((), ()) if drafted is None else drafted.found()

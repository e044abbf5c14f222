"""Models that compute nothing: what they return is looked up in tables that were made before.

What they return is decided by positions alone, so that drafts are accepted as they are from a real pair: the token at
position p is known, and of the proposals after an anchor at p a number that is drawn beforehand is right.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from dspine_cluster.bench.stopwatch import Stopwatch
from dspine_cluster.engine.blocks import BlockBatch, Verdicts
from dspine_cluster.engine.choosing import match
from dspine_cluster.models.config import FULL_ATTENTION, LINEAR_ATTENTION, GatedDeltaConfig, TargetConfig
from dspine_cluster.models.draft_sampling import DraftSampling
from dspine_cluster.models.drafter import DraftContext, Drafter, DraftOutput
from dspine_cluster.models.drafter_config import DrafterConfig
from dspine_cluster.models.target import TargetModel, TargetOutput

HIDDEN_SIZE = 64
VOCAB_SIZE = 1024
NUM_POSITIONS = 4096
_MAX_ROWS = 8192
_MEAN_RIGHT = 5.0
_RIGHT_LOGIT = 30.0

DRAFTER_CONFIG = DrafterConfig(
    kind="dspine",
    hidden_size=HIDDEN_SIZE,
    num_layers=1,
    num_heads=1,
    num_kv_heads=1,
    head_dim=8,
    intermediate_size=8,
    rms_norm_eps=1e-6,
    rope_theta=1e4,
    vocab_size=VOCAB_SIZE,
    block_size=16,
    mask_token_id=VOCAB_SIZE - 1,
    target_layer_ids=(1,),
    layer_types=(FULL_ATTENTION,),
    sliding_window=None,
    is_causal=(True,),
    transfer_rank=8,
    message_size=8,
)
TARGET_CONFIG = TargetConfig(
    model_type="qwen3_5_text",
    vocab_size=VOCAB_SIZE,
    hidden_size=HIDDEN_SIZE,
    intermediate_size=8,
    num_layers=2,
    layer_types=(LINEAR_ATTENTION, FULL_ATTENTION),
    num_heads=1,
    num_kv_heads=1,
    head_dim=8,
    rotary_dim=8,
    rope_theta=1e4,
    rms_norm_eps=1e-6,
    tie_word_embeddings=True,
    attention_bias=False,
    max_position_embeddings=NUM_POSITIONS,
    eos_token_ids=(0,),
    gated_delta=GatedDeltaConfig(
        num_key_heads=1, num_value_heads=1, key_head_dim=8, value_head_dim=8, conv_kernel=4
    ),
)


def _tokens() -> Tensor:
    """The token at each position: int64 [NUM_POSITIONS]. None of them ends a request."""
    return 300 + torch.arange(NUM_POSITIONS) * 7 % 500


_TOKENS: tuple[int, ...] = tuple(_tokens().tolist())


class NullTarget(TargetModel):
    """Certain of the token at every position."""

    def __init__(self, stopwatch: Stopwatch) -> None:
        super().__init__(TARGET_CONFIG, [], nn.Identity())
        self._stopwatch = stopwatch
        self._hidden = torch.zeros(_MAX_ROWS, HIDDEN_SIZE)
        self._logits = torch.zeros(NUM_POSITIONS, VOCAB_SIZE)
        self._logits[torch.arange(NUM_POSITIONS), _tokens()] = _RIGHT_LOGIT

    def forward(
        self, tokens: Tensor, positions: Tensor, cache: object, tapped_layers: object = ()
    ) -> TargetOutput:
        hidden = self._hidden[: len(tokens)]
        hidden[:, 0] = positions
        self._stopwatch.note_pass(len(tokens))
        return TargetOutput(hidden, hidden)

    def logits(self, hidden: Tensor) -> Tensor:
        with self._stopwatch.in_model():
            return self._logits[hidden[:, 0].long() + 1]


def look_up(blocks: BlockBatch) -> Verdicts:
    """The verdicts that `NullTarget`'s logits lead to, whoever chooses tokens from them."""
    tokens: list[int] = []
    for context, num_rows in zip(blocks.contexts, blocks.num_rows, strict=True):
        tokens += _TOKENS[len(context) : len(context) + num_rows]
    return Verdicts(tuple(tokens), blocks.starts, match(blocks, tokens).num_accepted)


class NullProjector(nn.Module):
    """Every feature is zero."""

    def __init__(self) -> None:
        super().__init__()
        self._features = torch.zeros(_MAX_ROWS, HIDDEN_SIZE)

    def forward(self, taps: Tensor) -> Tensor:
        return self._features[: len(taps)]


class NullDrafter(Drafter):
    """Proposes the right token as often as was drawn beforehand, then a wrong one."""

    def __init__(self, stopwatch: Stopwatch, *, walks: bool = True) -> None:
        """Without `walks` proposals are looked up alone."""
        empty = torch.zeros(VOCAB_SIZE, HIDDEN_SIZE)
        super().__init__(DRAFTER_CONFIG, empty, empty)
        self._stopwatch = stopwatch
        self._walks = walks
        num_proposals = DRAFTER_CONFIG.num_proposals
        random = torch.Generator().manual_seed(0)
        num_right = torch.empty(NUM_POSITIONS).exponential_(1.0 / _MEAN_RIGHT, generator=random).int()
        offsets = torch.arange(num_proposals)
        places = torch.arange(NUM_POSITIONS)[:, None] + 1 + offsets  # [NUM_POSITIONS, num_proposals]
        is_right = offsets < num_right[:, None]
        right = _tokens()[places % NUM_POSITIONS]
        top_k = torch.arange(DRAFTER_CONFIG.top_k)
        tokens = torch.where(is_right, right, right + 1)
        self._candidates = (tokens[..., None] + top_k) % (VOCAB_SIZE - 1)
        self._probs = (top_k == 0).float().expand(1, num_proposals, -1)
        noise = torch.rand(is_right.shape, generator=random)
        self._confidence = torch.where(is_right, 1.0 - 0.5 * noise, 0.8 * noise)
        self._row_shape = (DRAFTER_CONFIG.top_k, DRAFTER_CONFIG.top_k)
        self._keys = torch.zeros(1, _MAX_ROWS, 1, DRAFTER_CONFIG.head_dim)

    def project_context(self, features: Tensor, positions: Tensor) -> tuple[Tensor, Tensor]:
        keys = self._keys[:, : len(positions)]
        return keys, keys

    def candidates(self, anchors: Tensor, positions: Tensor, context: DraftContext) -> tuple[Tensor, Tensor]:
        with self._stopwatch.in_model():
            rows = self._confidence[positions][..., None, None].expand(-1, -1, *self._row_shape).contiguous()
            return self._candidates[positions], rows

    def walk(self, candidates: Tensor, rows: Tensor, sampling: DraftSampling) -> DraftOutput:
        """Walks as drafters do, for the time that it takes, and proposes the first candidates."""
        if self._walks:
            with self._stopwatch.in_sampling():
                super().walk(candidates, rows, sampling)
        with self._stopwatch.in_model():
            tokens, confidence = candidates[..., 0].contiguous(), rows[..., 0, 0].contiguous()
            return DraftOutput(tokens, candidates, self._probs.repeat(len(rows), 1, 1), confidence)

    def inject(self, layer: int, hidden: Tensor, anchors: Tensor) -> Tensor:
        raise AssertionError("this drafter has no layers")

    def rows(self, states: Tensor, anchors: Tensor, candidates: Tensor, logits: Tensor) -> Tensor:
        raise AssertionError("this drafter has no layers")

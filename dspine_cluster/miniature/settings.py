"""The recipe's numbers: what is built, and how long and how fast each stage learns."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from dspine_cluster.miniature.tokenizer import VOCAB_SIZE
from dspine_cluster.models.config import FULL_ATTENTION, LINEAR_ATTENTION, GatedDeltaConfig, TargetConfig
from dspine_cluster.models.drafter_config import SLIDING_ATTENTION, DrafterConfig

Kind = Literal["dspine", "dflash"]
KINDS: tuple[Kind, ...] = ("dspine", "dflash")
"""The drafters of the pair."""


@dataclass(frozen=True, slots=True)
class TargetSettings:
    """Training of the target. Tokens a step = processes * tokens_per_process."""

    steps: int = 2300
    processes: int = 2
    tokens_per_process: int = 2048
    length: int = 512
    long_length: int = 2048
    long_every: int = 8
    """Each so many steps the sequences are long, so that the miniature can read beyond `length`."""
    repetition_steps: int = 120
    """So many steps at first read only repetitions of random tokens."""
    repetition_every: int = 8
    """Later each so many steps do."""
    repetition_length: int = 256
    matrix_lr: float = 0.02
    embedding_lr: float = 0.004
    other_lr: float = 0.004
    warmup_steps: int = 20
    decay_share: float = 0.45
    """The learning rate falls linearly over this last share of the steps."""
    checkpoint_every_s: float = 180.0
    evaluate_every: int = 200
    seed: int = 7


@dataclass(frozen=True, slots=True)
class ContinuationSettings:
    """Text the target writes itself, on which the drafters learn."""

    prompts: int = 8_960
    long_prompts: int = 1_280
    """The last so many prompts follow a history of other exchanges."""
    long_tokens: tuple[int, int] = (512, 2304)
    """Shortest and longest of them."""
    kept_tokens: int = 512
    """Of a prompt's end that drafters learn from: what they see of the context."""
    batch_size: int = 64
    max_new_tokens: int = 192
    temperatures: tuple[float, ...] = (0.0, 0.0, 0.4, 0.7, 1.0)
    """Each prompt takes the next one, round and round."""
    seed: int = 11


@dataclass(frozen=True, slots=True)
class DrafterSettings:
    """Training of either drafter; both use the same data and steps."""

    steps: int = 3000
    tokens: int = 2048
    """Of context, a step, padding included."""
    blocks: int = 96
    """Drafted a step."""
    rate: float = 1.0
    """Factor of both learning rates: what the sweep varies."""
    matrix_lr: float = 0.02
    other_lr: float = 0.004
    warmup_steps: int = 40
    decay_share: float = 0.6
    checkpoint_every_s: float = 180.0
    seed: int = 5


@dataclass(frozen=True, slots=True)
class SweepSettings:
    """Short trainings of a drafter, one a learning rate, compared on held-out prompts that no figure uses."""

    rates: tuple[float, ...] = (0.5, 1.0, 2.0)
    steps: int = 160
    count: int = 12
    """Prompts a task."""
    seed: int = 1001


@dataclass(frozen=True, slots=True)
class Settings:
    """All stages."""

    tokenizer_documents: int = 30_000
    tokenizer_seed: int = 1
    vocab_size: int = VOCAB_SIZE
    hidden_size: int = 192
    intermediate_size: int = 512
    num_layers: int = 8
    target_layer_ids: tuple[int, ...] = (1, 2, 4, 5, 7)
    drafter_layers: int = 5
    transfer_rank: int = 128
    message_size: int = 256
    sliding_window: int = 512
    """What the drafters see of the context; no longer than what they are trained on."""
    target: TargetSettings = field(default_factory=TargetSettings)
    continuations: ContinuationSettings = field(default_factory=ContinuationSettings)
    drafter: DrafterSettings = field(default_factory=DrafterSettings)
    sweep: SweepSettings = field(default_factory=SweepSettings)

    def target_config(self, eos_token_ids: tuple[int, ...]) -> TargetConfig:
        """Three Gated DeltaNet layers to one of gated attention."""
        kinds = [FULL_ATTENTION if i % 4 == 3 else LINEAR_ATTENTION for i in range(self.num_layers)]
        return TargetConfig(
            model_type="qwen3_5_text",
            vocab_size=self.vocab_size,
            hidden_size=self.hidden_size,
            intermediate_size=self.intermediate_size,
            num_layers=self.num_layers,
            layer_types=tuple(kinds),
            num_heads=4,
            num_kv_heads=2,
            head_dim=64,
            rotary_dim=16,
            rope_theta=1e7,
            rms_norm_eps=1e-6,
            tie_word_embeddings=False,
            attention_bias=False,
            max_position_embeddings=8192,
            eos_token_ids=eos_token_ids,
            gated_delta=GatedDeltaConfig(
                num_key_heads=2, num_value_heads=6, key_head_dim=32, value_head_dim=32, conv_kernel=4
            ),
        )

    def drafter_config(self, kind: Kind) -> DrafterConfig:
        """Both kinds have the same backbone; inside a block `dspine` is causal and `dflash` is not."""
        is_dspine = kind == "dspine"
        return DrafterConfig(
            kind=kind,
            hidden_size=self.hidden_size,
            num_layers=self.drafter_layers,
            num_heads=4,
            num_kv_heads=2,
            head_dim=64,
            intermediate_size=self.intermediate_size,
            rms_norm_eps=1e-6,
            rope_theta=1e6,
            vocab_size=self.vocab_size,
            block_size=16,
            mask_token_id=self.vocab_size - 1,
            target_layer_ids=self.target_layer_ids,
            layer_types=(SLIDING_ATTENTION,) * self.drafter_layers,
            sliding_window=self.sliding_window,
            is_causal=(is_dspine,) * self.drafter_layers,
            transfer_rank=self.transfer_rank if is_dspine else 0,
            message_size=self.message_size if is_dspine else 0,
        )

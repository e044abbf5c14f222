"""A verifier loop driven step by step in one thread, over random targets and scripted drafters."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from torch import Tensor

from dspine_cluster.config import DraftingConfig, EngineConfig
from dspine_cluster.core.graph_buckets import GraphBuckets
from dspine_cluster.core.verify_length import FixedVerifyLength, VerifyLengthPolicy
from dspine_cluster.engine.batch import PackedRows
from dspine_cluster.engine.engine import Engine
from dspine_cluster.errors import ChannelClosedError
from dspine_cluster.models.architecture import make_target
from dspine_cluster.models.config import TargetConfig, parse_target_config
from dspine_cluster.models.packing import pack_weights
from dspine_cluster.models.target import TargetModel
from dspine_cluster.observability.timeline import Timeline
from dspine_cluster.token_bytes import TokenBytes
from dspine_cluster.transport.channel import Channel
from dspine_cluster.transport.confidence import bins_of
from dspine_cluster.transport.messages import (
    PROTOCOL_VERSION,
    Close,
    Draft,
    FeatureBatch,
    Features,
    Hello,
    Message,
    Open,
    Opened,
    Proposals,
)
from dspine_cluster.types import FinishReason, GenerateRequest, RoundOutput, SamplingParams, StopConditions
from dspine_cluster.verifier.committed import Committed
from dspine_cluster.verifier.grammars import Grammars
from dspine_cluster.verifier.loop import VerifierLoop
from tests.drafts import DraftItem, items_of

VOCAB_SIZE = 300
EOS = 299
MASK = 298
FEATURE_SIZE = 8
HIDDEN_SIZE = 32

Propose = Callable[[DraftItem], Sequence[int] | None]
"""The proposals for an item, or None to stay silent."""


def hybrid_config() -> TargetConfig:
    return parse_target_config(
        {
            "model_type": "qwen3_5_text",
            "vocab_size": VOCAB_SIZE,
            "hidden_size": HIDDEN_SIZE,
            "intermediate_size": 48,
            "num_hidden_layers": 4,
            "full_attention_interval": 4,
            "num_attention_heads": 2,
            "num_key_value_heads": 1,
            "head_dim": 16,
            "rope_theta": 10000.0,
            "rms_norm_eps": 1e-6,
            "max_position_embeddings": 4096,
            "linear_num_key_heads": 1,
            "linear_num_value_heads": 2,
            "linear_key_head_dim": 8,
            "linear_value_head_dim": 8,
            "linear_conv_kernel_dim": 4,
            "eos_token_id": EOS,
        }
    )


def dense_config() -> TargetConfig:
    return parse_target_config(
        {
            "model_type": "qwen3",
            "vocab_size": VOCAB_SIZE,
            "hidden_size": HIDDEN_SIZE,
            "intermediate_size": 48,
            "num_hidden_layers": 2,
            "num_attention_heads": 2,
            "num_key_value_heads": 1,
            "head_dim": 16,
            "rope_theta": 10000.0,
            "rms_norm_eps": 1e-6,
            "max_position_embeddings": 4096,
            "eos_token_id": EOS,
        }
    )


def random_target(config: TargetConfig, seed: int) -> TargetModel:
    """A target whose random weights are large enough that its greedy output wanders."""
    target = make_target(config)
    generator = torch.Generator().manual_seed(seed)
    for name, parameter in target.named_parameters():
        scale = 1.0 if "embed_tokens" in name else 0.3 if parameter.dim() > 1 else 0.1
        parameter.data = scale * torch.randn(parameter.shape, generator=generator)
    pack_weights(target)
    return target.eval().requires_grad_(False)


def byte_tokenizer() -> Tokenizer:
    """Ids 0 .. 255 are bytes."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE(vocab={letter: i for i, letter in enumerate(alphabet)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([f"<|{i}|>" for i in range(len(alphabet), VOCAB_SIZE)])
    return tokenizer


class ScriptedChannel:
    """The verifier's end of a channel to a drafter that answers at once with what `propose` says.

    It keeps the books of a real drafter: features must belong to open requests and, when a draft is asked for, the
    row before the anchor must have arrived.
    """

    def __init__(self, propose: Propose) -> None:
        self.peer = Hello(PROTOCOL_VERSION, "drafter", "target", "drafter", "tokenizer", "1")
        self.propose = propose
        self.positions: dict[int, set[int]] = {}
        self.is_lost = False
        self._inbox: list[Message] = []

    @property
    def free_credit_bytes(self) -> int:
        return 1 << 20

    def send(self, message: Message, *, bulk: bool = False) -> bool:
        if self.is_lost:
            raise ChannelClosedError("lost")
        match message:
            case FeatureBatch():
                return all(self.send(part, bulk=bulk) for part in message.parts())
            case Open():
                assert message.uid not in self.positions
                self.positions[message.uid] = set()
                self._inbox.append(Opened(message.uid, message.attempt, [], 1 << 20))
            case Features():
                self.positions[message.uid].update(range(message.start, message.end))
            case Close():
                del self.positions[message.uid]
            case Draft():
                for item in items_of(message):
                    assert item.position == 0 or item.position - 1 in self.positions[item.uid]
                    self._answer(item)
        return True

    def _answer(self, item: DraftItem) -> None:
        tokens = self.propose(item)
        if tokens is None:
            return
        row = np.asarray(tokens, dtype=np.int32)[None]
        q = np.ones((*row.shape, 1), dtype=np.float32)
        self._inbox.append(
            Proposals(
                np.array([[item.uid], [item.round], [1]]),
                row,
                row[..., None],
                q,
                bins_of(np.ones_like(row, np.float32)),
                0.001,
            )
        )

    def receive(self) -> list[Message]:
        if self.is_lost and not self._inbox:
            raise ChannelClosedError("lost")
        messages, self._inbox = self._inbox, []
        return messages

    def set_ready_callback(self, callback: Callable[[], None]) -> None:
        callback()

    def close(self) -> None:
        self.is_lost = True


@dataclass
class Result:
    """What a request has received."""

    token_ids: list[int] = field(default_factory=list)
    text: str = ""
    outputs: list[RoundOutput] = field(default_factory=list)

    @property
    def finish_reason(self) -> FinishReason | None:
        return self.outputs[-1].finish_reason if self.outputs else None


class VirtualClock:
    """Moves only when the loop waits."""

    def __init__(self) -> None:
        self.now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


def random_engine(
    target: TargetModel, *, pool_tokens: int, num_slots: int, graph_buckets: GraphBuckets | None = None
) -> Engine:
    """An engine whose features mix the first and the last layer at random."""
    projector = torch.nn.Linear(2 * HIDDEN_SIZE, FEATURE_SIZE, bias=False).requires_grad_(False)
    projector.weight.normal_(std=0.1, generator=torch.Generator().manual_seed(0))
    return Engine(
        target,
        num_pages=pool_tokens // 16,
        num_slots=num_slots,
        projector=projector,
        tapped_layers=(0, target.config.num_layers - 1),
        feature_size=FEATURE_SIZE,
        graph_buckets=graph_buckets,
    )


def engine_config(**settings: int) -> EngineConfig:
    """Small limits, so that chunks, admission and page borders matter."""
    values: dict[str, Any] = {
        "max_model_len_tokens": 256,
        "pool_tokens": 1024,
        "max_running_requests": 8,
        "prefill_chunk_tokens": 64,
        "max_batch_tokens": 256,
    }
    return EngineConfig(**(values | settings))


def time_passes(
    monkeypatch: pytest.MonkeyPatch, harness: LoopHarness, pass_s: Callable[[int], float]
) -> None:
    """Let every pass take `pass_s(number of its tokens)` on the harness's clock."""
    forward = harness.engine.forward

    def timed(packed: PackedRows, *, with_features: bool) -> Tensor:
        harness.clock.now_s += pass_s(packed.num_rows)
        return forward(packed, with_features=with_features)

    monkeypatch.setattr(harness.engine, "forward", timed)


class LoopHarness:
    """A loop, its clock and what it delivered."""

    def __init__(
        self,
        target: TargetModel,
        *,
        channel: Channel | None = None,
        policy: VerifyLengthPolicy | None = None,
        engine: Engine | None = None,
        tokenizer: Tokenizer | None = None,
        mask_token_id: int = MASK,
        drafting: DraftingConfig | None = None,
        seed: int = 0,
        **settings: int,
    ) -> None:
        config = engine_config(**settings)
        assert config.pool_tokens is not None
        self.engine = engine or random_engine(
            target, pool_tokens=config.pool_tokens, num_slots=config.max_running_requests
        )
        self.clock = VirtualClock()
        self.results: dict[int, Result] = {}
        self.lost: list[str] = []
        self.loop = VerifierLoop(
            self.engine,
            TokenBytes(tokenizer or byte_tokenizer()),
            engine_config=config,
            drafting_config=drafting or DraftingConfig(),
            policy=policy or FixedVerifyLength(15),
            block_size=16,
            mask_token_id=mask_token_id,
            deliver=self._deliver,
            on_drafter_lost=lambda endpoint, is_faulty: self.lost.append(endpoint),
            random_seed=seed,
            clock=self.clock,
        )
        self.grammars = Grammars(
            TokenBytes(tokenizer or byte_tokenizer()),
            eos_token_ids=target.config.eos_token_ids,
            mask_token_id=mask_token_id,
            vocab_size=target.config.vocab_size,
        )
        if channel is not None:
            self.loop.drafters.connect("scripted", channel)

    def submit(self, uid: int, request: GenerateRequest, timeline: Timeline | None = None) -> None:
        self.results[uid] = Result()
        grammar = None if request.grammar is None else asyncio.run(self.grammars.compile(request.grammar))
        self.loop.submit(uid, request, grammar, timeline)

    def step(self) -> bool:
        """One step; a wait moves the clock. False when nothing is left that could happen."""
        wait_s = self.loop.step()
        self.loop.streams.check_integrity()
        if wait_s is None:
            return True
        if wait_s == float("inf"):
            return False
        self.clock.now_s += wait_s
        return True

    def run(self, max_steps: int = 10_000) -> None:
        """Step until all requests have ended."""
        for _ in range(max_steps):
            if not len(self.loop.streams):
                return
            assert self.step(), "requests are left but nothing can move them"
        raise AssertionError("requests never end")

    def generate(self, requests: Sequence[GenerateRequest]) -> list[Result]:
        first = len(self.results)
        for offset, request in enumerate(requests):
            self.submit(first + offset, request)
        self.run()
        return [self.results[first + offset] for offset in range(len(requests))]

    def _deliver(self, committed: Sequence[Committed]) -> None:
        for own in committed:
            result, output = self.results[own.uid], own.output()
            assert result.finish_reason is None, "an output after the end"
            result.outputs.append(output)
            result.token_ids += output.token_ids
            result.text += output.text


def make_request(
    prompt_ids: Sequence[int], *, max_tokens: int = 40, sampling: SamplingParams | None = None, **stop: object
) -> GenerateRequest:
    """Greedy unless `sampling` says otherwise."""
    conditions = StopConditions(max_tokens=max_tokens, **stop)  # type: ignore[arg-type]
    return GenerateRequest("test", tuple(prompt_ids), sampling or SamplingParams(temperature=0.0), conditions)


def random_prompts(count: int, seed: int, max_length: int = 40) -> list[list[int]]:
    generator = torch.Generator().manual_seed(seed)
    lengths = torch.randint(1, max_length + 1, (count,), generator=generator).tolist()
    return [torch.randint(0, 256, (length,), generator=generator).tolist() for length in lengths]

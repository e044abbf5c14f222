"""Real drafters behind a loop of their own, driven in the verifier's thread."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

from dspine_cluster.drafter.loop import DrafterLoop
from dspine_cluster.drafter.runner import DraftRunner
from dspine_cluster.engine.engine import Engine
from dspine_cluster.models.drafter import Drafter
from dspine_cluster.models.drafter_config import SLIDING_ATTENTION, DrafterConfig
from dspine_cluster.models.drafter_init import build_drafter, build_feature_projector
from dspine_cluster.models.target import TargetModel
from dspine_cluster.transport.channel import Channel
from dspine_cluster.transport.local import pair
from dspine_cluster.transport.messages import PROTOCOL_VERSION, Draft, Hello, Message, Open
from tests.verifier.harness import MASK

VERIFIER = Hello(PROTOCOL_VERSION, "verifier", "target", "drafter", "tokenizer", "1")
DRAFTER = Hello(PROTOCOL_VERSION, "drafter", "target", "drafter", "tokenizer", "2")


class DrivenChannel:
    """The verifier's end of a channel whose other side answers within `send`."""

    def __init__(self, loop: DrafterLoop) -> None:
        self._verifier, drafter = pair(VERIFIER, DRAFTER)
        self._loop = loop
        loop.add_channel(drafter)

    @property
    def peer(self) -> Hello:
        return self._verifier.peer

    @property
    def free_credit_bytes(self) -> int:
        return self._verifier.free_credit_bytes

    def send(self, message: Message, *, bulk: bool = False) -> bool:
        sent = self._verifier.send(message, bulk=bulk)
        if isinstance(message, Open | Draft):
            while self._loop.step():
                pass
        return sent

    def receive(self) -> list[Message]:
        return self._verifier.receive()

    def set_ready_callback(self, callback: Callable[[], None]) -> None:
        self._verifier.set_ready_callback(callback)

    def close(self) -> None:
        self._verifier.close()


def drive(drafter: Drafter, *, num_pages: int = 256, max_context_tokens: int = 4000) -> Channel:
    loop = DrafterLoop(DraftRunner(drafter, num_pages, random_seed=1), max_context_tokens=max_context_tokens)
    return DrivenChannel(loop)


def random_pair(
    target: TargetModel,
    kind: Literal["dspine", "dflash"],
    *,
    window: int,
    pool_tokens: int = 1024,
    num_slots: int = 8,
) -> tuple[Engine, Drafter]:
    """A random drafter for a random target, and the target's engine with that drafter's projector."""
    values: dict[str, Any] = {
        "kind": kind,
        "hidden_size": target.config.hidden_size,
        "num_layers": 2,
        "num_heads": 2,
        "num_kv_heads": 1,
        "head_dim": 16,
        "intermediate_size": 48,
        "rms_norm_eps": 1e-6,
        "rope_theta": 1e4,
        "vocab_size": target.config.vocab_size,
        "block_size": 16,
        "mask_token_id": MASK,
        "target_layer_ids": (0, target.config.num_layers - 1),
        "layer_types": (SLIDING_ATTENTION,) * 2,
        "sliding_window": window,
        "is_causal": (True,) * 2,
    }
    if kind == "dspine":
        values |= {"transfer_rank": 16, "message_size": 12, "top_k": 16}
    config = DrafterConfig(**values)
    drafter = build_drafter(config, embedding=target.embedding_weight, lm_head=target.lm_head_weight, seed=4)
    engine = Engine(
        target,
        num_pages=pool_tokens // 16,
        num_slots=num_slots,
        projector=build_feature_projector(config, seed=5).requires_grad_(False),
        tapped_layers=config.target_layer_ids,
        feature_size=config.hidden_size,
    )
    return engine, drafter.requires_grad_(False).eval()

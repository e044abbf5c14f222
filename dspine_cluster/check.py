"""Whether a target and a drafter can be served together, and what they need: the substance of `dspine check`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from math import prod
from pathlib import Path

import torch

from dspine_cluster.engine.draft_pool import DraftPool
from dspine_cluster.engine.memory import PoolBytes
from dspine_cluster.errors import ConfigError, DspineError
from dspine_cluster.models.architecture import make_target
from dspine_cluster.models.config import TargetConfig
from dspine_cluster.models.drafter_config import DrafterConfig
from dspine_cluster.models.drafter_weights import drafter_problems, expected_shapes, read_drafter_config
from dspine_cluster.models.fit import check_fit
from dspine_cluster.models.sharding import shard_config
from dspine_cluster.models.weights import read_target_config, target_problems
from dspine_cluster.types import PAGE_TOKENS

USABLE_SHARE = 0.92
"""Share of a GPU's memory that weights and pools may take; the rest is activations, graphs and fragmentation."""
_ON_VERIFIER = ("fc.", "hidden_norm.")


@dataclass(frozen=True)
class MemoryPlan:
    """Bytes that a pair takes, and what then fits, on the first rank where the target is split over several. All
    figures are of decimal bytes."""

    target_weights: int
    projector_weights: int
    """`fc` and `hidden_norm` of the drafter, which run beside the target."""
    kv_per_token: int
    features_per_token: int
    state_per_request: int
    """Live recurrent and convolution state."""
    pending_per_request: int
    """What a block in flight takes beyond the live state: its raw inputs, kept for replay."""
    drafter_weights: int
    """Without the part that runs on the verifier, with codes."""
    shared_weights: int
    """The target's embedding and head, which the drafter's device holds too."""
    context_per_token: int
    """Draft context K/V."""

    @property
    def verifier_weights(self) -> int:
        return self.target_weights + self.projector_weights

    @property
    def drafter_device_weights(self) -> int:
        return self.drafter_weights + self.shared_weights

    def verifier_request(self, context_tokens: int) -> int:
        """Bytes of one request of `context_tokens` on a verifier."""
        per_token = self.kv_per_token + self.features_per_token
        return context_tokens * per_token + self.state_per_request + self.pending_per_request

    def num_verifier_requests(self, gpu_bytes: int, context_tokens: int) -> int:
        """Requests of `context_tokens` that a verifier's GPU holds at once; negative when the weights do not fit."""
        free = int(gpu_bytes * USABLE_SHARE) - self.verifier_weights
        return free // self.verifier_request(context_tokens)

    def num_drafter_requests(self, gpu_bytes: int, context_tokens: int) -> int:
        """Like `num_verifier_requests`, for a drafter's GPU."""
        free = int(gpu_bytes * USABLE_SHARE) - self.drafter_device_weights
        return free // max(1, context_tokens * self.context_per_token)


@dataclass(frozen=True)
class PairReport:
    """What `check_pair` found. `plan` is None when a config cannot be read."""

    problems: list[str] = field(default_factory=list)
    target: TargetConfig | None = None
    drafter: DrafterConfig | None = None
    num_target_parameters: int = 0
    num_drafter_parameters: int = 0
    plan: MemoryPlan | None = None


def check_pair(
    target_folder: Path, drafter_folder: Path | None, dtype: torch.dtype, num_ranks: int = 1
) -> PairReport:
    """Compare configs and tensor headers; no weights are read. Problems are collected, not raised. The plan is that of
    the first of `num_ranks` that the target is split over, which holds most."""
    try:
        target = read_target_config(target_folder)
        drafter = read_drafter_config(drafter_folder) if drafter_folder is not None else None
    except DspineError as error:
        return PairReport(problems=[str(error)])
    problems = _collect(lambda: target_problems(target_folder, target))
    if drafter_folder is not None and drafter is not None:
        problems += _collect(lambda: drafter_problems(drafter_folder, drafter))
        problems += _collect(lambda: check_fit(target, drafter))
    part = None
    try:
        part = shard_config(target, num_ranks)
    except ConfigError as error:
        problems.append(str(error))
    return PairReport(
        problems=problems,
        target=target,
        drafter=drafter,
        num_target_parameters=_num_target_parameters(target),
        num_drafter_parameters=sum(map(prod, expected_shapes(drafter).values())) if drafter else 0,
        plan=plan_memory(part, drafter, dtype) if part else None,
    )


def _collect(find: Callable[[], list[str] | None]) -> list[str]:
    """The problems that `find` returns or raises."""
    try:
        return find() or []
    except DspineError as error:
        return [str(error)]


def plan_memory(target: TargetConfig, drafter: DrafterConfig | None, dtype: torch.dtype) -> MemoryPlan:
    """The bytes of a pair whose weights and caches are of `dtype`; recurrent states are fp32 always."""
    unit = PoolBytes.of(target, feature_size=0, dtype=dtype)
    shapes = expected_shapes(drafter) if drafter else {}
    on_verifier = sum(prod(shape) for name, shape in shapes.items() if name.startswith(_ON_VERIFIER))
    num_drafter = sum(map(prod, shapes.values()))
    head = target.vocab_size * target.hidden_size
    return MemoryPlan(
        target_weights=_num_target_parameters(target) * dtype.itemsize,
        projector_weights=on_verifier * dtype.itemsize,
        kv_per_token=unit.page // PAGE_TOKENS,
        features_per_token=drafter.hidden_size * dtype.itemsize if drafter else 0,
        state_per_request=unit.state,
        pending_per_request=unit.pending,
        drafter_weights=(num_drafter - on_verifier) * dtype.itemsize,
        shared_weights=(head if target.tie_word_embeddings else 2 * head) * dtype.itemsize if drafter else 0,
        context_per_token=DraftPool.page_bytes(drafter, dtype) // PAGE_TOKENS if drafter else 0,
    )


def _num_target_parameters(config: TargetConfig) -> int:
    with torch.device("meta"):
        return sum(parameter.numel() for parameter in make_target(config).state_dict().values())

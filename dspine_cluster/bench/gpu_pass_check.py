"""Whole passes through a few layers, recorded and replayed, beside the same on the CPU in fp32."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from dspine_cluster.bench.gpu_checks import Check, Outcome
from dspine_cluster.bench.gpu_models import fill
from dspine_cluster.core.graph_buckets import GraphBuckets
from dspine_cluster.engine.batch import PackedRows, Segment
from dspine_cluster.engine.engine import Engine
from dspine_cluster.models.architecture import make_target
from dspine_cluster.models.config import TargetConfig
from dspine_cluster.models.packing import pack_weights
from dspine_cluster.models.target import TargetModel

_VOCABULARY = 1000
_PROMPTS = (37, 5, 130)
_PAGES = ([0, 3, 6, 10, 13], [1, 4, 7, 11, 14], [2, 5, 8, 9, 12, 15, 16, 17, 18, 19, 20, 21])
_ROUNDS = (((16, 1, 7), (5, 0, 3)), ((16, 4, 9), (15, 2, 0)), ((16, 3, 8), (0, 0, 0)), ((1, 1, 1), (0, 0, 0)))
"""Widths of blocks and accepted proposals; the second and the third replay what the first recorded."""


def pass_check(config: TargetConfig, device: torch.device) -> Check:
    """Prefill and rounds of three requests through the first four layers, with narrow MLPs and few tokens."""
    small = replace(
        config,
        num_layers=4,
        layer_types=config.layer_types[:4],
        vocab_size=_VOCABULARY,
        intermediate_size=min(config.intermediate_size, 1024),
    )

    def compare() -> tuple[Outcome, Outcome]:
        target = _make(small)
        fill(target, device, torch.Generator(device).manual_seed(4))
        reference = _make(small)
        weights = {name: value.cpu().float() for name, value in target.state_dict().items()}
        reference.load_state_dict(weights, assign=True)
        for model in (target, reference):
            pack_weights(model.requires_grad_(False).eval())
        return _run(target, GraphBuckets(4, 16)), _run(reference, None)

    return Check("passes through four layers", compare, limit=5e-2)


def _make(config: TargetConfig) -> TargetModel:
    with torch.device("meta"):
        return make_target(config)


def _run(target: TargetModel, buckets: GraphBuckets | None) -> Sequence[Tensor]:
    """Final hidden states of every pass."""
    engine = Engine(target, num_pages=22, num_slots=4, graph_buckets=buckets)
    lengths = list(_PROMPTS)
    slots = [engine.state_pool.allocate() for _ in lengths]
    prompts = [
        Segment([7 * t % _VOCABULARY for t in range(length)], 0, pages, slot)
        for length, pages, slot in zip(lengths, _PAGES, slots, strict=True)
    ]
    outputs = [engine.forward(PackedRows.of(chunks=prompts))]
    for widths, accepted in _ROUNDS:
        blocks = [
            Segment([(11 * j + i) % _VOCABULARY for j in range(width)], lengths[i], _PAGES[i], slots[i])
            for i, width in enumerate(widths)
        ]
        outputs.append(engine.forward(PackedRows.of(blocks)).clone())
        for i, num_accepted in enumerate(accepted):
            engine.state_pool.set_pending(slots[i], num_accepted)
            lengths[i] += num_accepted + 1
    return outputs

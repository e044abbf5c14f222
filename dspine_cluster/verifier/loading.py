"""Loads what a verifier needs: the target, the part of the drafter that runs beside it, tokenizer and identity."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from random import Random

import torch
from torch import nn

from dspine_cluster.config import DraftingConfig, EngineConfig, VerifierConfig, parse_verify
from dspine_cluster.core.verify_length import FixedVerifyLength, VerifyLengthPolicy
from dspine_cluster.core.verify_policy import make_policy
from dspine_cluster.engine.engine import Engine
from dspine_cluster.engine.graphs import can_record
from dspine_cluster.engine.memory import PoolBytes, free_bytes, num_pages
from dspine_cluster.engine.pace_file import read_pace
from dspine_cluster.engine.ranks.followers import Followers
from dspine_cluster.engine.ranks.orders import PoolOrder
from dspine_cluster.errors import ConfigError
from dspine_cluster.identity import make_hello
from dspine_cluster.models.drafter_config import DrafterConfig
from dspine_cluster.models.drafter_weights import load_feature_projector, read_drafter_config
from dspine_cluster.models.fit import check_fit
from dspine_cluster.models.folder import load_tokenizer
from dspine_cluster.models.sharding import Shard, shard_config
from dspine_cluster.models.weights import load_target, read_target_config
from dspine_cluster.sources import locate_model
from dspine_cluster.token_bytes import TokenBytes
from dspine_cluster.transport.messages import Hello


@dataclass(frozen=True, eq=False)
class LoadedVerifier:
    """Everything that a loop is built from."""

    engine: Engine
    token_bytes: TokenBytes
    drafter_config: DrafterConfig | None
    hello: Hello


def load_verifier(config: VerifierConfig) -> LoadedVerifier:
    """Load and warm up.

    Raises:
        ConfigError, CheckpointError: a folder is not what it should be.
        MismatchError: target and drafter do not belong together.
    """
    dtype, device = getattr(torch, config.engine.dtype), torch.device(config.engine.device)
    folder = locate_model(config.target)
    drafter_folder = None if config.drafter.name == "none" else locate_model(config.drafter)
    drafter_config = None
    projector = None
    if drafter_folder is not None:
        drafter_config = read_drafter_config(drafter_folder)
        check_fit(read_target_config(folder), drafter_config)
        projector = load_feature_projector(drafter_folder, dtype=dtype, device=device)
    feature_size = drafter_config.hidden_size if drafter_config else 0
    _check_feature_sizes(config.drafting, feature_size * dtype.itemsize)
    engine = _load_engine(folder, config.engine, projector, drafter_config)
    engine.warm_up()
    return LoadedVerifier(
        engine=engine,
        token_bytes=TokenBytes(load_tokenizer(folder)),
        drafter_config=drafter_config,
        hello=make_hello("verifier", folder, drafter_folder, config.engine.dtype),
    )


def _load_engine(
    folder: Path, config: EngineConfig, projector: nn.Module | None, drafter: DrafterConfig | None
) -> Engine:
    """The target with its pools, on as many ranks as configured."""
    dtype, device = getattr(torch, config.dtype), torch.device(config.device)
    num_ranks = config.tensor_parallel
    feature_size = drafter.hidden_size if drafter else 0
    followers = None
    pace = read_pace(config.paced_by)
    with ExitStack() as on_failure:
        if num_ranks > 1:
            shard_config(read_target_config(folder), num_ranks)  # before processes start that would refuse it
            followers = Followers(folder, dtype=config.dtype, device=device, num_ranks=num_ranks)
            on_failure.callback(followers.close)
        target = load_target(
            folder,
            dtype=dtype,
            device=device,
            shard=Shard(0, num_ranks),
            reduce=followers.group.sum if followers else None,
        )
        unit = PoolBytes.of(target.config, feature_size, dtype)
        order = PoolOrder(
            num_pages=num_pages(config, unit, free_bytes(device, num_ranks)),
            num_slots=config.max_running_requests,
            graph_block_size=(drafter.block_size if drafter else 1) if can_record(device) else 0,
        )
        if followers is not None:
            followers.join()
            followers.make_pools(order)
        engine = Engine(
            target,
            num_pages=order.num_pages,
            num_slots=order.num_slots,
            projector=projector,
            tapped_layers=drafter.target_layer_ids if drafter else (),
            feature_size=feature_size,
            graph_buckets=order.graph_buckets,
            followers=followers,
            pace=pace,
        )
        on_failure.pop_all()
    return engine


def policy_for(
    verify: str, drafter: DrafterConfig | None, token_sizes: Sequence[int] = ()
) -> VerifyLengthPolicy:
    """The policy of a `verify` setting; without a drafter that of plain decoding. `token_sizes` are the engine's.

    Raises:
        ConfigError: there is no such setting.
    """
    length = parse_verify(verify)
    if drafter is None:
        return FixedVerifyLength(0)
    return make_policy(length, Random(0), max_proposals=drafter.num_proposals, buckets=token_sizes)


def _check_feature_sizes(config: DraftingConfig, row_bytes: int) -> None:
    """A step must be able to send a feature, or none would ever be repaired."""
    if config.repair_bytes_per_step < row_bytes:
        raise ConfigError(f"drafting.repair_bytes_per_step must hold a feature, which has {row_bytes} bytes")

"""Loads what a drafter replica needs: the drafter, the part of the target it shares, and its identity."""

from __future__ import annotations

import torch

from dspine_cluster.config import DrafterServiceConfig
from dspine_cluster.identity import make_hello
from dspine_cluster.models.drafter import Drafter
from dspine_cluster.models.drafter_weights import load_drafter, read_drafter_config
from dspine_cluster.models.fit import check_fit
from dspine_cluster.models.shared_weights import load_embedding_and_head
from dspine_cluster.models.weights import read_target_config
from dspine_cluster.sources import locate_model
from dspine_cluster.transport.messages import Hello


def load_drafter_replica(config: DrafterServiceConfig) -> tuple[Drafter, Hello]:
    """The drafter, ready to run, and what it says of itself: a new epoch each time.

    Raises:
        ConfigError, CheckpointError: a folder is not what it should be.
        MismatchError: target and drafter do not belong together.
    """
    dtype, device = getattr(torch, config.dtype), torch.device(config.device)
    target_folder, drafter_folder = locate_model(config.target), locate_model(config.drafter)
    check_fit(read_target_config(target_folder), read_drafter_config(drafter_folder))
    embedding, lm_head = load_embedding_and_head(target_folder, dtype=dtype, device=device)
    drafter = load_drafter(drafter_folder, embedding=embedding, lm_head=lm_head, dtype=dtype, device=device)
    return drafter, make_hello("drafter", target_folder, drafter_folder, config.dtype)

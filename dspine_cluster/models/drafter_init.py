"""Drafters before training: random backbones, and a transfer space made from the target's head."""

from __future__ import annotations

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from dspine_cluster.errors import ConfigError
from dspine_cluster.models.dflash import DFlash
from dspine_cluster.models.drafter import Drafter
from dspine_cluster.models.drafter_config import DrafterConfig
from dspine_cluster.models.drafter_layers import FeatureProjector
from dspine_cluster.models.dspine import DSpine

_INIT_STD = 0.02
_SMALLEST_SHARE_OF_VARIANCE = 1e-12


class TransferSpace(NamedTuple):
    """Where token codes and states meet (arXiv 2609.36173)."""

    codes: Tensor  # float32 [vocab_size, rank], unit rows
    directions: Tensor  # float32 [rank, hidden_size], orthonormal rows: what readouts start as


def make_drafter(config: DrafterConfig, embedding: Tensor, lm_head: Tensor) -> Drafter:
    """The module for `config`; parameters as torch leaves them.

    Raises:
        MismatchError: the target's weights have other shapes.
    """
    return (
        DSpine(config, embedding, lm_head) if config.kind == "dspine" else DFlash(config, embedding, lm_head)
    )


def build_drafter(config: DrafterConfig, *, embedding: Tensor, lm_head: Tensor, seed: int) -> Drafter:
    """A drafter as training starts it: matrices normal(0, 0.02), no injection yet (writes and predecessor gate 0).

    Raises:
        ConfigError: the head has fewer principal directions than `transfer_rank`.
        MismatchError: the target's weights have other shapes.
    """
    drafter = make_drafter(config, embedding, lm_head)
    _randomise(drafter, seed)
    if isinstance(drafter, DSpine):
        space = transfer_space(lm_head, config.transfer_rank)
        drafter.set_transfer_codes(space.codes)
        with torch.no_grad():
            for layer in range(config.num_layers):
                weights = drafter.injection.weights(layer)
                weights.readout.copy_(space.directions)
                weights.write.zero_()
            drafter.injection.predecessor_gate.weight.zero_()
    return drafter


def build_feature_projector(config: DrafterConfig, *, seed: int) -> FeatureProjector:
    """A projector as training starts it."""
    projector = FeatureProjector(config)
    _randomise(projector, seed)
    return projector


def transfer_space(lm_head: Tensor, rank: int) -> TransferSpace:
    """PCA-whiten the normalised, mean-removed rows of `lm_head` `[vocab_size, hidden_size]` to `rank` directions.

    Raises:
        ConfigError: the rows span fewer than `rank` directions.
    """
    rows = F.normalize(lm_head.detach().double(), dim=-1)
    centred = rows - rows.mean(0)
    variances, directions = torch.linalg.eigh(centred.T @ centred)  # ascending
    variances, directions = variances[-rank:], directions[:, -rank:]
    if rank > lm_head.shape[1] or not bool(variances[0] > _SMALLEST_SHARE_OF_VARIANCE * variances[-1]):
        raise ConfigError(f"transfer_rank {rank} exceeds the principal directions of the target's lm_head")
    codes = F.normalize(centred @ directions / variances.sqrt(), dim=-1)
    return TransferSpace(codes.float(), directions.T.contiguous().float())


def _randomise(module: nn.Module, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in module.parameters():
            if parameter.dim() > 1:
                parameter.normal_(std=_INIT_STD, generator=generator)

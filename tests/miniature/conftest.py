from __future__ import annotations

import os

import pytest
import torch
from tokenizers import Tokenizer

from dspine_cluster import miniature
from dspine_cluster.miniature.encoding import Encoder
from dspine_cluster.miniature.settings import (
    ContinuationSettings,
    DrafterSettings,
    Settings,
    SweepSettings,
    TargetSettings,
)
from dspine_cluster.models.folder import load_tokenizer
from dspine_cluster.models.target import TargetModel
from tests.random_targets import build_target

torch.set_num_threads(1)
os.environ.setdefault("OMP_NUM_THREADS", "1")

SMALL = Settings(
    hidden_size=64,
    intermediate_size=128,
    num_layers=4,
    target_layer_ids=(1, 3),
    drafter_layers=2,
    transfer_rank=32,
    message_size=32,
    target=TargetSettings(
        steps=4,
        processes=1,
        tokens_per_process=128,
        length=64,
        long_length=128,
        repetition_steps=1,
        repetition_every=5,
        repetition_length=64,
        warmup_steps=1,
        evaluate_every=4,
    ),
    continuations=ContinuationSettings(
        prompts=9, batch_size=3, max_new_tokens=12, long_prompts=3, long_tokens=(128, 768), kept_tokens=64
    ),
    drafter=DrafterSettings(steps=4, tokens=256, blocks=8, warmup_steps=1),
    sweep=SweepSettings(rates=(0.5, 2.0), steps=2, count=1),
)
"""The smallest pair with the real tokenizer. Runs every stage in a second or so, and learns nothing."""


@pytest.fixture(scope="session")
def settings() -> Settings:
    return SMALL


@pytest.fixture(scope="session")
def tokenizer() -> Tokenizer:
    return load_tokenizer(miniature.folder("target"))


@pytest.fixture(scope="session")
def encoder(tokenizer: Tokenizer) -> Encoder:
    return Encoder(tokenizer)


@pytest.fixture(scope="session")
def target(settings: Settings) -> TargetModel:
    """Random, with logits far enough apart that sampling at temperature 1 still varies."""
    config = settings.target_config((3064, 3062))
    return build_target(config, seed=3, std=0.1).requires_grad_(False)

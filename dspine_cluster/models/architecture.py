"""Which class serves a configured architecture."""

from __future__ import annotations

from dspine_cluster.models.config import TargetConfig
from dspine_cluster.models.qwen3 import make_qwen3
from dspine_cluster.models.qwen3_5 import make_qwen3_5
from dspine_cluster.models.target import TargetModel


def make_target(config: TargetConfig) -> TargetModel:
    """A target of the configured architecture whose weights are not yet set."""
    return make_qwen3_5(config) if config.model_type == "qwen3_5_text" else make_qwen3(config)

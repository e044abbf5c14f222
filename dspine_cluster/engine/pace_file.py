"""The file that says how long steps last."""

from __future__ import annotations

from pathlib import Path

import yaml

from dspine_cluster.config import parse_config
from dspine_cluster.core.cost_model import CostModel
from dspine_cluster.engine.pace import Pace
from dspine_cluster.errors import ConfigError


def read_pace(path: str | None) -> Pace | None:
    """The pace of a YAML file with the keys of `CostModel`; None without a file.

    Raises:
        ConfigError: it cannot be read, or a key is unknown or of the wrong type or range.
    """
    if path is None:
        return None
    try:
        values = yaml.safe_load(Path(path).read_text(encoding="utf-8"))
    except (OSError, ValueError, yaml.YAMLError) as error:
        raise ConfigError(f"cannot read the step times in {path}: {error}") from error
    if not isinstance(values, dict):
        raise ConfigError(f"{path} must be a mapping of keys to seconds")
    return Pace(parse_config(CostModel, values))

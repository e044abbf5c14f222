"""From the name of a model to its folder."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from dspine_cluster import miniature
from dspine_cluster.config import ModelSource
from dspine_cluster.errors import ConfigError
from dspine_cluster.models.folder import resolve_model

_BUILT_IN: dict[str, Literal["target", "dspine", "dflash"]] = {
    "miniature": "target",
    "miniature-dspine": "dspine",
    "miniature-dflash": "dflash",
}


def locate_model(source: ModelSource) -> Path:
    """The folder of a built-in model, a local folder, or a snapshot of a pinned Hub revision.

    Raises:
        ConfigError: the name is none of these, or `none`, which names no model.
    """
    if source.name == "none":
        raise ConfigError("'none' means plain decoding and names no model")
    if source.name in _BUILT_IN:
        return miniature.folder(_BUILT_IN[source.name])
    return resolve_model(source.name, source.revision)

"""The committed miniature pair, its held-out prompts, and the recipe that trains it."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

PAIR_FOLDER = Path(__file__).parent / "pair"


def folder(part: Literal["target", "dspine", "dflash"]) -> Path:
    """The model folder of one part of the pair, in Hugging Face's layout."""
    return PAIR_FOLDER / part

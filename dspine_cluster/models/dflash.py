"""The DFlash drafter (arXiv 2602.06036): every position of a block is chosen on its own."""

from __future__ import annotations

from torch import Tensor

from dspine_cluster.models.drafter import Drafter


class DFlash(Drafter):
    """The backbone alone. q at a position is the softmax over its top candidates, renormalised."""

    def inject(self, layer: int, hidden: Tensor, anchors: Tensor) -> Tensor:
        return hidden

    def rows(self, states: Tensor, anchors: Tensor, candidates: Tensor, logits: Tensor) -> Tensor:
        return logits.unsqueeze(2)

"""Drafts by request, as tests speak of them."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from dspine_cluster.transport.messages import Busy, Draft


class DraftItem(msgspec.Struct, frozen=True):
    """One request's block to draft: a column of a `Draft`."""

    uid: int
    round: int
    anchor: int
    position: int
    num_proposals: int
    temperature: float
    seed: int | None
    output_index: int


def draft_of(items: Sequence[DraftItem]) -> Draft:
    return Draft.of(
        uids=[item.uid for item in items],
        rounds=[item.round for item in items],
        anchors=[item.anchor for item in items],
        positions=[item.position for item in items],
        num_proposals=[item.num_proposals for item in items],
        output_indices=[item.output_index for item in items],
        seeds=[item.seed for item in items],
        temperatures=[item.temperature for item in items],
    )


def items_of(draft: Draft) -> list[DraftItem]:
    return [
        DraftItem(
            uid,
            number,
            anchor,
            position,
            num_proposals,
            temperature,
            seed if has_seed else None,
            output_index,
        )
        for uid, number, anchor, position, num_proposals, output_index, has_seed, seed, temperature in zip(
            *draft.numbers.tolist(), draft.temperatures.tolist(), strict=True
        )
    ]


def busy_rounds(busy: Busy) -> list[tuple[int, int]]:
    """(uid, round) of what was refused."""
    return list(zip(busy.uids.tolist(), busy.rounds.tolist(), strict=True))

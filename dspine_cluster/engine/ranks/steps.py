"""What the leading rank tells the others, as bytes: copies of cached memory, then a pass."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from itertools import chain

from dspine_cluster.engine.batch import PackedRows
from dspine_cluster.engine.page_table import PageTable


class Copy(IntEnum):
    """Copies of what a request or a prefix left in the pools, each with two numbers."""

    PAGE = 0
    """From page, to page."""
    SAVE_STATE = 1
    """From slot, to checkpoint."""
    LOAD_STATE = 2
    """From checkpoint, to slot."""


@dataclass(slots=True)
class Step:
    """A pass, and the copies that were asked for since the last one, in order."""

    copies: Sequence[tuple[Copy, int, int]]
    packed: PackedRows
    num_pending: Sequence[int]
    """Of each block: how many accepted inputs of the pass before its recurrent state has not seen yet."""


_HEADER = 5  # numbers of copies, blocks, segments, tokens, and pages of each segment


def encode_step(step: Step) -> bytes:
    """The step as int32 numbers in the machine's order: it stays on the machine."""
    packed = step.packed
    sizes = (len(step.copies), packed.num_blocks, len(packed.lengths), packed.num_rows, packed.num_pages)
    numbers = array("i", sizes)
    numbers.extend(chain.from_iterable(step.copies))
    for column in (step.num_pending, packed.lengths, packed.starts, packed.state_slots, packed.tokens):
        numbers.extend(column)
    return numbers.tobytes() + packed.page_table.tobytes()


def decode_step(data: bytes) -> Step:
    """What `encode_step` was given."""
    numbers = array("i", data)
    num_copies, num_blocks, num_segments, num_tokens, num_pages = numbers[:_HEADER]
    at = _HEADER

    def take(count: int) -> array[int]:
        nonlocal at
        at += count
        return numbers[at - count : at]

    copies = [take(3) for _ in range(num_copies)]
    num_pending = take(num_blocks).tolist()
    lengths, starts, state_slots = (take(num_segments).tolist() for _ in range(3))
    tokens = take(num_tokens).tolist()
    page_table = PageTable(max(state_slots) + 1)
    for slot in state_slots:
        page_table.write(slot, take(num_pages))
    assert at == len(numbers)
    packed = PackedRows(tokens, lengths, starts, state_slots, page_table, num_blocks=num_blocks)
    return Step([(Copy(kind), source, target) for kind, source, target in copies], packed, num_pending)

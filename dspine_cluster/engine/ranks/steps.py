"""What the leading rank tells the others, as bytes: copies of cached memory, then a pass."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from itertools import chain

from dspine_cluster.engine.batch import Segment


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
    blocks: Sequence[Segment]
    chunks: Sequence[Segment]
    num_pending: Sequence[int]
    """Of each block: how many accepted inputs of the pass before its recurrent state has not seen yet."""


_HEADER = 3  # numbers of copies, blocks and chunks
_PER_SEGMENT = 4  # numbers of tokens and pages, start, state slot


def encode_step(step: Step) -> bytes:
    """The step as int32 numbers in the machine's order: it stays on the machine."""
    segments = [*step.blocks, *step.chunks]
    numbers = array("i", (len(step.copies), len(step.blocks), len(step.chunks)))
    numbers.extend(chain.from_iterable(step.copies))
    numbers.extend(step.num_pending)
    for segment in segments:
        numbers.extend((len(segment.tokens), len(segment.pages), segment.start, segment.state_slot))
    for segment in segments:
        numbers.extend(segment.tokens)
        numbers.extend(segment.pages)
    return numbers.tobytes()


def decode_step(data: bytes) -> Step:
    """What `encode_step` was given."""
    numbers = array("i", data)
    num_copies, num_blocks, num_chunks = numbers[:_HEADER]
    at = _HEADER
    copies = [(Copy(numbers[i]), numbers[i + 1], numbers[i + 2]) for i in range(at, at + 3 * num_copies, 3)]
    at += 3 * num_copies
    num_pending = numbers[at : at + num_blocks].tolist()
    at += num_blocks
    heads = [
        numbers[i : i + _PER_SEGMENT]
        for i in range(at, at + _PER_SEGMENT * (num_blocks + num_chunks), _PER_SEGMENT)
    ]
    at += _PER_SEGMENT * len(heads)
    segments = []
    for num_tokens, num_pages, start, state_slot in heads:
        tokens, pages = numbers[at : at + num_tokens], numbers[at + num_tokens : at + num_tokens + num_pages]
        segments.append(Segment(tokens.tolist(), start, pages, state_slot))
        at += num_tokens + num_pages
    assert at == len(numbers)
    return Step(copies, segments[:num_blocks], segments[num_blocks:], num_pending)

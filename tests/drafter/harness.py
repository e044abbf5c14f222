"""A drafter loop that is driven turn by turn over in-process channels, and what it should answer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
import torch

from dspine_cluster.drafter.loop import DrafterLoop
from dspine_cluster.drafter.runner import DraftRunner
from dspine_cluster.models.drafter import Drafter, DraftOutput
from dspine_cluster.transport.channel import Channel
from dspine_cluster.transport.confidence import bins_of
from dspine_cluster.transport.local import pair
from dspine_cluster.transport.messages import (
    PROTOCOL_VERSION,
    Features,
    Hello,
    Message,
    Open,
    Opened,
    Proposals,
    UInt8Array,
)
from tests.drafts import DraftItem, draft_of
from tests.models.drafter_cases import (
    Block,
    anchors_of,
    paged_context,
    random_block,
    random_drafter,
    sampling_of,
    small_config,
)

VERIFIER = Hello(PROTOCOL_VERSION, "verifier", "target", "drafter", "tokenizer", "1")
DRAFTER = msgspec.structs.replace(VERIFIER, role="drafter", epoch="2")


def raw_rows(features: torch.Tensor) -> UInt8Array:
    """`[n, hidden_size]` as rows of bytes."""
    rows: UInt8Array = features.contiguous().view(torch.uint8).numpy()
    return rows


def features_of(block: Block, uid: int, start: int, end: int) -> Features:
    return Features(uid, start, raw_rows(block.features[start:end]))


def item_of(block: Block, uid: int, **changes: Any) -> DraftItem:
    item = DraftItem(uid, 7, block.anchor, block.position, 5, 0.0, None, 3)
    return msgspec.structs.replace(item, **changes)


def expected_output(drafter: Drafter, block: Block, item: DraftItem) -> DraftOutput:
    """What the drafter says of one block by itself."""
    sampling = sampling_of([item.temperature], [item.seed], [item.output_index])
    return drafter.draft(*anchors_of([block]), paged_context(drafter, [block]), sampling)


def assert_proposals(proposals: Proposals, row: int, drafter: Drafter, block: Block, item: DraftItem) -> None:
    """Row `row` answers `item`, which must be greedy or seeded."""
    expected = expected_output(drafter, block, item)
    width = proposals.tokens.shape[1]
    assert (proposals.uids[row], proposals.rounds[row]) == (item.uid, item.round)
    assert proposals.tokens[row].tolist() == expected.tokens[0, :width].tolist()
    assert proposals.bins[row].tolist() == bins_of(expected.confidence[0, :width].numpy()).tolist()
    assert not proposals.is_sampled[row]


class LoopBench:
    """A loop with a small random drafter; `turn` stands for its thread."""

    def __init__(self, *, num_pages: int = 64, drafter: Drafter | None = None, **options: Any) -> None:
        self.drafter = drafter or random_drafter(small_config())
        options = {"max_context_tokens": 1000, **options}
        self.loop = DrafterLoop(DraftRunner(self.drafter, num_pages, random_seed=1), **options)
        self.opened: list[Opened] = []

    def connect(self, hello: Hello = VERIFIER) -> Channel:
        """A verifier's end of a new channel."""
        verifier, drafter = pair(hello, DRAFTER)
        self.loop.add_channel(drafter)
        return verifier

    def turn(self, verifier: Channel, *messages: Message) -> list[Any]:
        """Send, let the loop take turns until it is idle, and give what came back but for what `opened` keeps."""
        for message in messages:
            assert verifier.send(message)
        while self.loop.step():
            pass
        answers = verifier.receive()
        self.opened += [answer for answer in answers if isinstance(answer, Opened)]
        return [answer for answer in answers if not isinstance(answer, Opened)]

    def block(self, position: int, start: int = 0, seed: int = 0) -> Block:
        return random_block(self.drafter.config, position, start, seed)

    def draft(self, verifier: Channel, blocks: Sequence[Block], **changes: Any) -> list[Any]:
        """Open, feed and draft blocks as requests 0, 1, ...; what came back."""
        messages: list[Message] = []
        for uid, block in enumerate(blocks):
            messages.append(Open(uid))
            if block.position > block.start:
                messages.append(features_of(block, uid, block.start, block.position))
        items = [item_of(block, uid, **changes) for uid, block in enumerate(blocks)]
        return self.turn(verifier, *messages, draft_of(items))

"""The drafter's loop: receive, ingest features, draft a batch, send."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Iterable, Sequence
from contextlib import suppress
from itertools import compress, count, islice
from queue import Empty, SimpleQueue

from dspine_cluster.core.draft_context import DraftContextTable
from dspine_cluster.core.page_hash import PageKey
from dspine_cluster.drafter.client import Client, RequestKey
from dspine_cluster.drafter.counters import DraftCounters
from dspine_cluster.drafter.runner import Arrival, Block, DraftRunner, Drafts
from dspine_cluster.errors import ChannelClosedError, ChannelError, EngineStoppedError
from dspine_cluster.transport.channel import Channel
from dspine_cluster.transport.messages import (
    Busy,
    Close,
    Draft,
    DraftItem,
    FeatureBatch,
    Features,
    Message,
    Need,
    Open,
    Opened,
    Proposals,
    UInt8Array,
    split_keys,
)

logger = logging.getLogger(__name__)

_IDLE_S = 0.5
"""How often an idle loop shows that it lives."""
_PUBLISH_S = 0.1
"""How often a busy loop looks which prefixes it has come to hold."""


class DrafterLoop:
    """Serves any number of channels with one drafter, in a thread of its own.

    All drafts that are asked for when a batch starts are drafted together. A verifier that breaks the protocol loses
    its channel; a failure of the model ends the loop, and with it all channels.
    """

    def __init__(
        self,
        runner: DraftRunner,
        *,
        max_context_tokens: int,
        max_batch_blocks: int = 64,
        max_queued_blocks: int = 256,
    ) -> None:
        window = runner.config.context_window
        self.contexts = DraftContextTable[RequestKey](
            runner.num_pages, min(max_context_tokens, window or max_context_tokens)
        )
        self._runner = runner
        self._max_batch_blocks = max_batch_blocks
        self._max_queued_blocks = max_queued_blocks
        self._joining: SimpleQueue[Channel] = SimpleQueue()
        self._numbers = count()
        self._clients: dict[int, Client] = {}
        self._arrivals: list[Arrival] = []
        self._queue: dict[RequestKey, DraftItem] = {}
        """Blocks to draft, oldest first; a newer draft of the same request replaces the older."""
        self._wake = threading.Event()
        self._is_stopping = False
        self._failure: BaseException | None = None
        self._advanced_at_s = self._published_at_s = time.monotonic()
        self._thread = threading.Thread(target=self.run, name="drafter-loop", daemon=True)
        self.counters = DraftCounters()

    @property
    def num_channels(self) -> int:
        return len(self._clients)

    def add_channel(self, channel: Channel) -> None:
        """Serve a channel from now on; may be called from any thread."""
        self._joining.put(channel)
        channel.set_ready_callback(self._wake.set)
        self._wake.set()
        if self._is_stopping:
            channel.close()

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """End the loop and close its channels. Harmless when it does not run."""
        self._is_stopping = True
        self._wake.set()
        if self._thread.is_alive():
            self._thread.join()

    def check_health(self, stall_s: float) -> None:
        """Raises EngineStoppedError if the loop has ended or has not advanced for `stall_s`."""
        if self._failure is not None:
            raise EngineStoppedError("the drafter loop has failed") from self._failure
        if not self._thread.is_alive():
            raise EngineStoppedError("the drafter loop does not run")
        if time.monotonic() - self._advanced_at_s > stall_s:
            raise EngineStoppedError(f"the drafter loop has not advanced for {stall_s} s")

    def run(self) -> None:
        """Serve until `stop` or a failure of the model."""
        try:
            while not self._is_stopping:
                self._advanced_at_s = time.monotonic()
                if not self.step():
                    self._wake.wait(_IDLE_S)
                    self._wake.clear()
        except Exception as error:
            self._failure = error
            logger.exception("the drafter loop failed; this replica must be restarted")
        finally:
            self._is_stopping = True
            self._welcome()
            for client in self._clients.values():
                client.channel.close()

    def step(self) -> bool:
        """One turn. Returns whether it answered a draft, so that the next turn may find more to do."""
        self._welcome()
        for client in list(self._clients.values()):
            self._receive(client)
        arrivals, self._arrivals = self._arrivals, []
        self._runner.ingest(arrivals)
        batch = [(key, self._queue.pop(key)) for key in list(islice(self._queue, self._max_batch_blocks))]
        self._draft(batch)
        self._publish(is_idle=not batch)
        return bool(batch)

    def _publish(self, *, is_idle: bool) -> None:
        """Bring `prefix_events` up to date, at times only while there is more to do."""
        now_s = time.monotonic()
        if is_idle or now_s - self._published_at_s > _PUBLISH_S:
            self._published_at_s = now_s
            self.contexts.publish()

    def _welcome(self) -> None:
        """Take over the channels that were added."""
        with suppress(Empty):
            while True:
                channel = self._joining.get_nowait()
                try:
                    client = Client(next(self._numbers), channel, self._runner.config)
                except ChannelError as error:
                    logger.warning("refused a verifier: %s", error)
                    channel.close()
                    continue
                self._clients[client.number] = client

    def _receive(self, client: Client) -> None:
        try:
            for message in client.channel.receive():
                client.check(message)
                self._take(client, message)
        except ChannelClosedError:
            self._drop(client)
        except ChannelError as error:
            logger.warning("a verifier broke the protocol and is dropped: %s", error)
            client.channel.close()
            self._drop(client)

    def _take(self, client: Client, message: Message) -> None:
        match message:
            case Open(uid=uid):
                client.uids.add(uid)
                ranges = self.contexts.open(client.key(uid), split_keys(message.page_keys))
                client.send(Opened(uid, message.attempt, ranges, self.contexts.max_context_tokens))
                self.counters.num_cached_tokens += sum(end - start for start, end in ranges)
            case Features():
                self._place(client, [(message.uid, message.start, len(message.rows))], message.rows)
            case FeatureBatch():
                counts = message.counts.tolist()
                runs = zip(message.uids.tolist(), message.starts.tolist(), counts, strict=True)
                self._place(client, runs, message.rows)
            case Draft(items=items):
                self._enqueue(client, items)
            case Close(uid=uid) if uid in client.uids:
                client.uids.remove(uid)
                self._forget(client.key(uid), split_keys(message.page_keys))
            case Close():
                pass

    def _place(self, client: Client, runs: Iterable[tuple[int, int, int]], rows: UInt8Array) -> None:
        """Find places for the rows that are new, of runs (uid, first position, number of rows). A run may be overtaken
        by the close of its request."""
        kept: list[int] = []
        positions: list[int] = []
        slots: list[int] = []
        first = 0
        for uid, start, num_rows in runs:
            if uid in client.uids:
                for placement in self.contexts.place(client.key(uid), start, start + num_rows):
                    own = range(placement.start, placement.start + len(placement.slots))
                    positions.extend(own)
                    slots.extend(placement.slots)
                    row = first + placement.start - start
                    kept.extend(range(row, row + len(placement.slots)))
            first += num_rows
        if not kept:
            return
        new = rows if len(kept) == len(rows) else rows[kept]
        self._arrivals.append(Arrival(new, client.features_dtype, positions, slots))
        self.counters.num_features += len(kept)

    def _enqueue(self, client: Client, items: Sequence[DraftItem]) -> None:
        refused = []
        for item in items:
            key = client.key(item.uid)
            if key in self._queue or len(self._queue) < self._max_queued_blocks:
                self._queue[key] = item
            else:
                refused.append(item)
        self._refuse(client, refused)

    def _draft(self, batch: Sequence[tuple[RequestKey, DraftItem]]) -> None:
        """Draft what has its context, and tell the others' verifiers what is missing."""
        blocks: dict[int, list[Block]] = {}
        refused: dict[int, list[DraftItem]] = {}
        for key, item in batch:
            context = self.contexts.usable(key, item.position)
            if context is not None:
                blocks.setdefault(key.client, []).append(Block(item, context))
            elif self.contexts.has_room(key):
                start, end = self.contexts.missing(key, item.position)
                self.counters.num_needs += 1
                self._clients[key.client].send(Need(item.uid, start, end))
            else:
                refused.setdefault(key.client, []).append(item)
        for number, items in refused.items():
            self._refuse(self._clients[number], items)
        if not blocks:
            return
        start_s = time.monotonic()
        drafts = self._runner.draft([block for blocks_of in blocks.values() for block in blocks_of])
        draft_s = time.monotonic() - start_s
        self.counters.num_batches += 1
        self.counters.draft_s += draft_s
        first = 0
        for number, blocks_of in blocks.items():
            rows = slice(first, first + len(blocks_of))
            first = rows.stop
            self._reply(
                self._clients[number], [block.item for block in blocks_of], drafts.rows(rows), draft_s
            )

    def _reply(self, client: Client, items: Sequence[DraftItem], drafts: Drafts, draft_s: float) -> None:
        if not drafts.is_finite.all():
            logger.warning("features of a verifier gave drafts that are not finite numbers")
            refused = list(compress(items, ~drafts.is_finite))
            self._refuse(client, refused)
            for item in refused:
                self.contexts.distrust(client.key(item.uid))
            items = list(compress(items, drafts.is_finite))
            drafts = drafts.rows(drafts.is_finite)
        if not items:
            return
        self.counters.num_blocks += len(items)
        num_proposals = max(item.num_proposals for item in items)
        is_greedy = all(item.temperature == 0.0 for item in items)
        client.send(
            Proposals(
                uids=[item.uid for item in items],
                rounds=[item.round for item in items],
                tokens=drafts.tokens[:, :num_proposals],
                candidates=None if is_greedy else drafts.candidates[:, :num_proposals],
                probs=None if is_greedy else drafts.probs[:, :num_proposals],
                confidence=drafts.confidence[:, :num_proposals],
                draft_s=draft_s,
            )
        )

    def _refuse(self, client: Client, items: Sequence[DraftItem]) -> None:
        if items:
            self.counters.num_busy += len(items)
            client.send(Busy([item.uid for item in items], [item.round for item in items]))

    def _forget(self, key: RequestKey, more_page_keys: Sequence[PageKey] = ()) -> None:
        self.contexts.close(key, more_page_keys)
        self._queue.pop(key, None)

    def _drop(self, client: Client) -> None:
        """Let go of all that a channel's requests hold."""
        for uid in client.uids:
            self._forget(client.key(uid))
        del self._clients[client.number]

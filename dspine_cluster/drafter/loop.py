"""The drafter's loop: receive, ingest features, draft a batch, send."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Sequence
from itertools import compress, count, groupby
from queue import SimpleQueue

import numpy as np

from dspine_cluster.core.draft_context import DraftContextTable
from dspine_cluster.core.page_hash import PageKey
from dspine_cluster.drafter.ask_queue import AskQueue
from dspine_cluster.drafter.client import Client, RequestKey
from dspine_cluster.drafter.context_rows import ContextRows
from dspine_cluster.drafter.counters import DraftCounters
from dspine_cluster.drafter.runner import Arrival, DraftRunner, Drafts
from dspine_cluster.engine.inference import in_inference_mode
from dspine_cluster.errors import ChannelClosedError, ChannelError, EngineStoppedError
from dspine_cluster.transport.channel import Channel
from dspine_cluster.transport.confidence import bins_of
from dspine_cluster.transport.messages import (
    Busy,
    Close,
    Draft,
    FeatureBatch,
    Features,
    Int64Array,
    Message,
    Need,
    Open,
    Opened,
    Proposals,
    UInt8Array,
    split_keys,
)
from dspine_cluster.transport.waiter import Waiter

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
        self._joining: SimpleQueue[Channel] = SimpleQueue()
        self._numbers = count()
        self._clients: dict[int, Client] = {}
        self._arrivals: list[Arrival] = []
        self._rows = ContextRows(self.contexts)
        self._queue = AskQueue(max_queued_blocks)
        self._waiter = Waiter()
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
        self._waiter.watch(channel)
        if self._is_stopping:
            channel.close()

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """End the loop and close its channels. Harmless when it does not run."""
        self._is_stopping = True
        self._waiter.set()
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

    @in_inference_mode
    def run(self) -> None:
        """Serve until `stop` or a failure of the model."""
        try:
            while not self._is_stopping:
                self._advanced_at_s = time.monotonic()
                if not self.step():
                    self._waiter.wait(_IDLE_S)
                    self._waiter.clear()
        except Exception as error:
            self._failure = error
            logger.exception("the drafter loop failed; this replica must be restarted")
        finally:
            self._is_stopping = True
            self._welcome()
            for client in self._clients.values():
                client.channel.close()

    def step(self) -> bool:
        """One turn. Returns whether blocks are left to be drafted in the next one."""
        self._welcome()
        for client in list(self._clients.values()):
            self._receive(client)
        if self._arrivals:
            self.counters.ingest_s += self._runner.ingest(self._arrivals)
            self._arrivals.clear()  # the memory of their rows is the senders' again
        if batch := self._queue.take(self._max_batch_blocks):
            self._draft(batch)
        has_more = len(self._queue) > 0
        self._publish(is_idle=not has_more)
        return has_more

    def _publish(self, *, is_idle: bool) -> None:
        """Bring `prefix_events` up to date, at times only while there is more to do."""
        now_s = time.monotonic()
        if is_idle or now_s - self._published_at_s > _PUBLISH_S:
            self._published_at_s = now_s
            self.contexts.publish()

    def _welcome(self) -> None:
        """Take over the channels that were added."""
        while not self._joining.empty():
            channel = self._joining.get()
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
                ranges = self.contexts.open(client.key(uid), split_keys(message.page_keys))
                client.open(uid, self._rows.open(client.key(uid)))
                client.send(Opened(uid, message.attempt, ranges, self.contexts.max_context_tokens))
                self.counters.num_cached_tokens += sum(end - start for start, end in ranges)
            case Features():
                uid, start, count = np.array([[message.uid], [message.start], [len(message.rows)]])
                self._place(client, uid, start, count, message.rows)
            case FeatureBatch():
                self._place(client, message.uids, message.starts, message.counts, message.rows)
            case Draft():
                self._enqueue(client, message)
            case Close(uid=uid) if uid in client:
                self._forget(client, uid, split_keys(message.page_keys))
            case Close():
                pass

    def _place(
        self, client: Client, uids: Int64Array, starts: Int64Array, counts: Int64Array, rows: UInt8Array
    ) -> None:
        """Find places for those of feature `rows` that are new; the first of each run of `counts` is of position
        `starts`. A run may be overtaken by the close of its request."""
        places = self._rows.place(client.rows_of(uids), starts, counts)
        if not len(places.slots):
            return
        new = rows if places.kept is None else rows[places.kept]
        self._arrivals.append(Arrival(new, client.features_dtype, *places[1:], places.kept is not None))
        self.counters.num_features += len(new)

    def _enqueue(self, client: Client, draft: Draft) -> None:
        is_refused = self._queue.add(client.rows_of(draft.uids), draft)
        if is_refused is not None:
            self._refuse(client, draft.uids[is_refused], draft.rounds[is_refused])

    def _draft(self, rows: list[int]) -> None:
        """Draft what has its context, and tell the others' verifiers what is missing."""
        rows = self._by_client(rows)
        asks = self._queue.asked(rows)
        pages, is_there = self._rows.find(rows, asks.positions)
        if np.count_nonzero(is_there) < len(rows):
            for i in np.flatnonzero(~is_there).tolist():
                self._ask_for_features(self._rows.key(rows[i]), asks, i)
            if not is_there.any():
                return
            rows = list(compress(rows, is_there))
            asks = asks.part(is_there)
            pages = pages.of(is_there)
        start_s = time.monotonic()
        drafts = self._runner.draft(asks, pages)
        draft_s = time.monotonic() - start_s
        self.counters.num_batches += 1
        self.counters.draft_s += draft_s
        if len(self._clients) == 1:
            self._reply(self._clients[self._rows.key(rows[0]).client], asks, drafts, draft_s)
            return
        first = 0
        for number, own_rows in groupby(rows, lambda row: self._rows.key(row).client):
            own = slice(first, first + len(list(own_rows)))
            first = own.stop
            self._reply(self._clients[number], asks.part(own), drafts.rows(own), draft_s)

    def _by_client(self, rows: list[int]) -> list[int]:
        """The same, those of one client after another."""
        if len(self._clients) == 1:
            return rows
        by_client: dict[int, list[int]] = {}
        for row in rows:
            by_client.setdefault(self._rows.key(row).client, []).append(row)
        return [row for own in by_client.values() for row in own]

    def _ask_for_features(self, key: RequestKey, asks: Draft, index: int) -> None:
        """Tell what the draft lacks, or refuse it where no page could be had."""
        client = self._clients[key.client]
        if not self.contexts.has_room(key):
            self._refuse(client, asks.uids[index : index + 1], asks.rounds[index : index + 1])
            return
        start, end = self.contexts.missing(key, int(asks.positions[index]))
        self.counters.num_needs += 1
        client.send(Need(key.uid, start, end))

    def _reply(self, client: Client, asks: Draft, drafts: Drafts, draft_s: float) -> None:
        is_finite = drafts.is_finite
        if is_finite is not None and not is_finite.all():
            logger.warning("features of a verifier gave drafts that are not finite numbers")
            refused = asks.uids[~is_finite]
            self._refuse(client, refused, asks.rounds[~is_finite])
            for uid in refused.tolist():
                self.contexts.distrust(client.key(uid))
            if not is_finite.any():
                return
            asks, drafts = asks.part(is_finite), drafts.rows(is_finite)
        self.counters.num_blocks += len(asks)
        client.send(
            Proposals(
                numbers=np.array((asks.uids, asks.rounds, drafts.is_sampled)),
                tokens=drafts.tokens,
                candidates=drafts.candidates,
                probs=drafts.probs,
                bins=bins_of(drafts.confidence),
                draft_s=draft_s,
            )
        )

    def _refuse(self, client: Client, uids: Int64Array, rounds: Int64Array) -> None:
        self.counters.num_busy += len(uids)
        client.send(Busy(np.array((uids, rounds))))

    def _forget(self, client: Client, uid: int, more_page_keys: Sequence[PageKey] = ()) -> None:
        row = client.close(uid)
        self.contexts.close(client.key(uid), more_page_keys)
        self._rows.close(row)
        self._queue.discard(row)

    def _drop(self, client: Client) -> None:
        """Let go of all that a channel's requests hold."""
        for uid in client.uids:
            self._forget(client, uid)
        del self._clients[client.number]

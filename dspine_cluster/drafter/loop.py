"""The drafter's loop: receive, ingest features, draft a batch, send."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Iterable, Sequence
from contextlib import suppress
from itertools import count, islice
from queue import Empty, SimpleQueue
from typing import NamedTuple

import numpy as np

from dspine_cluster.core.draft_context import DraftContextTable, UsableContext
from dspine_cluster.core.page_hash import PageKey
from dspine_cluster.drafter.client import Client, RequestKey
from dspine_cluster.drafter.counters import DraftCounters
from dspine_cluster.drafter.runner import Arrival, DraftRunner, Drafts
from dspine_cluster.errors import ChannelClosedError, ChannelError, EngineStoppedError
from dspine_cluster.transport.channel import Channel
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

logger = logging.getLogger(__name__)

_IDLE_S = 0.5
"""How often an idle loop shows that it lives."""
_PUBLISH_S = 0.1
"""How often a busy loop looks which prefixes it has come to hold."""


class _Ask(NamedTuple):
    numbers: Int64Array
    """int64 [8]: the request's column of `Draft.numbers`."""
    temperature: float


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
        self._queue: dict[RequestKey, _Ask] = {}
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
            case Draft():
                self._enqueue(client, message)
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

    def _enqueue(self, client: Client, draft: Draft) -> None:
        refused = []
        columns = zip(draft.uids.tolist(), draft.numbers.T, draft.temperatures.tolist(), strict=True)
        for row, (uid, numbers, temperature) in enumerate(columns):
            key = client.key(uid)
            if key in self._queue or len(self._queue) < self._max_queued_blocks:
                self._queue[key] = _Ask(numbers, temperature)
            else:
                refused.append(row)
        if refused:
            self._refuse(client, draft.uids[refused], draft.rounds[refused])

    def _draft(self, batch: Sequence[tuple[RequestKey, _Ask]]) -> None:
        """Draft what has its context, and tell the others' verifiers what is missing."""
        found: dict[int, list[tuple[_Ask, UsableContext]]] = {}
        for key, ask in batch:
            position = int(ask.numbers[3])
            context = self.contexts.usable(key, position)
            if context is not None:
                found.setdefault(key.client, []).append((ask, context))
            elif self.contexts.has_room(key):
                start, end = self.contexts.missing(key, position)
                self.counters.num_needs += 1
                self._clients[key.client].send(Need(key.uid, start, end))
            else:
                self._refuse(self._clients[key.client], ask.numbers[0:1], ask.numbers[1:2])
        if not found:
            return
        asks = [ask for asks_of in found.values() for ask, _ in asks_of]
        draft = Draft(np.stack([ask.numbers for ask in asks], 1), np.array([ask.temperature for ask in asks]))
        start_s = time.monotonic()
        drafts = self._runner.draft(draft, [context for asks_of in found.values() for _, context in asks_of])
        draft_s = time.monotonic() - start_s
        self.counters.num_batches += 1
        self.counters.draft_s += draft_s
        first = 0
        for number, asks_of in found.items():
            rows = slice(first, first + len(asks_of))
            first = rows.stop
            own = Draft(draft.numbers[:, rows], draft.temperatures[rows])
            self._reply(self._clients[number], own, drafts.rows(rows), draft_s)

    def _reply(self, client: Client, asks: Draft, drafts: Drafts, draft_s: float) -> None:
        if not drafts.is_finite.all():
            logger.warning("features of a verifier gave drafts that are not finite numbers")
            refused = asks.uids[~drafts.is_finite]
            self._refuse(client, refused, asks.rounds[~drafts.is_finite])
            for uid in refused.tolist():
                self.contexts.distrust(client.key(uid))
            if not drafts.is_finite.any():
                return
            asks = Draft(asks.numbers[:, drafts.is_finite], asks.temperatures[drafts.is_finite])
            drafts = drafts.rows(drafts.is_finite)
        self.counters.num_blocks += len(asks)
        num_proposals = int(asks.num_proposals.max())
        is_greedy = not asks.temperatures.any()
        client.send(
            Proposals(
                uids=asks.uids,
                rounds=asks.rounds,
                tokens=drafts.tokens[:, :num_proposals],
                candidates=None if is_greedy else drafts.candidates[:, :num_proposals],
                probs=None if is_greedy else drafts.probs[:, :num_proposals],
                confidence=drafts.confidence[:, :num_proposals],
                draft_s=draft_s,
            )
        )

    def _refuse(self, client: Client, uids: Int64Array, rounds: Int64Array) -> None:
        self.counters.num_busy += len(uids)
        client.send(Busy(uids, rounds))

    def _forget(self, key: RequestKey, more_page_keys: Sequence[PageKey] = ()) -> None:
        self.contexts.close(key, more_page_keys)
        self._queue.pop(key, None)

    def _drop(self, client: Client) -> None:
        """Let go of all that a channel's requests hold."""
        for uid in client.uids:
            self._forget(client.key(uid))
        del self._clients[client.number]

"""What a socket adds to a round's messages, over handing them to another thread of the same process."""

from __future__ import annotations

import multiprocessing
import secrets
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection
from typing import Any

import numpy as np

from dspine_cluster.errors import ChannelClosedError, ChannelError
from dspine_cluster.transport.channel import Channel
from dspine_cluster.transport.local import pair
from dspine_cluster.transport.messages import (
    PROTOCOL_VERSION,
    Draft,
    FeatureBatch,
    Hello,
    Proposals,
)
from dspine_cluster.transport.socket import Listener, connect, parse_endpoint
from dspine_cluster.transport.waiter import Waiter
from dspine_cluster.types import MAX_PROPOSALS

TOP_K = 16
_ROW_ITEM_BYTES = 2  # bfloat16
_WARM_UP_ROUNDS = 20
_TIMEOUT_S = 60.0


def run_channel(num_requests: int, num_tokens: int, width: int, num_rounds: int) -> dict[str, Any]:
    """Time rounds in turn through both kinds of channel: features of `num_tokens` tokens for each request and a draft
    there, sampled proposals back. The socket's other end is a process of its own."""
    rows = np.random.default_rng(0).integers(
        0, 256, (num_requests, num_tokens, width * _ROW_ITEM_BYTES), np.uint8
    )
    times_ms: list[tuple[float, float]] = []
    with _local_drafter() as local, _remote_drafter() as remote:
        ends = [_End(local), _End(remote)]
        for number in range(_WARM_UP_ROUNDS + num_rounds):
            first, second = (end.round_trip(number, rows) for end in ends)
            times_ms.append((1000 * first, 1000 * second))
    medians = np.median(times_ms[_WARM_UP_ROUNDS:], 0)
    return {
        "requests": num_requests,
        "tokens": num_tokens,
        "width": width,
        "bytes": rows.nbytes,
        "rounds": num_rounds,
        "local_ms_median": float(medians[0]),
        "socket_ms_median": float(medians[1]),
        "added_ms_median": float(medians[1] - medians[0]),
    }


class _End:
    """A verifier's end of a channel."""

    def __init__(self, channel: Channel) -> None:
        self._channel = channel
        self._waiter = Waiter()
        self._waiter.watch(channel)

    def round_trip(self, number: int, rows: np.ndarray[Any, np.dtype[np.uint8]]) -> float:
        """Seconds from the first message sent to the proposals."""
        num_tokens = rows.shape[1]
        started_s = time.perf_counter()
        features = FeatureBatch.of(
            uids=np.arange(len(rows)),
            starts=np.full(len(rows), number * num_tokens),
            counts=np.full(len(rows), num_tokens),
            rows=rows.reshape(-1, rows.shape[2]),
        )
        if not self._channel.send(features):
            raise ChannelError("the credits do not suffice for a round's features")
        draft = Draft.of(
            uids=features.uids,
            rounds=np.full(len(rows), number),
            anchors=np.ones(len(rows), np.int64),
            positions=features.starts + num_tokens,
            num_proposals=np.full(len(rows), MAX_PROPOSALS),
            output_indices=np.zeros(len(rows), np.int64),
            seeds=[None] * len(rows),
            temperatures=np.ones(len(rows)),
        )
        self._channel.send(draft)
        while not any(isinstance(message, Proposals) for message in self._channel.receive()):
            if not self._waiter.wait(_TIMEOUT_S):
                raise ChannelError(f"no answer within {_TIMEOUT_S:.0f} s")
            self._waiter.clear()
        return time.perf_counter() - started_s


def _answer(channel: Channel) -> None:
    """Be a drafter that drafts nothing: reads what comes, and answers every draft, until the channel closes."""
    waiter = Waiter()
    waiter.watch(channel)
    while True:
        waiter.wait(_TIMEOUT_S)
        waiter.clear()
        try:
            drafts = [message for message in channel.receive() if isinstance(message, Draft)]
        except ChannelClosedError:
            return
        for draft in drafts:
            channel.send(_proposals(draft))


def _proposals(draft: Draft) -> Proposals:
    shape = (len(draft), MAX_PROPOSALS)
    return Proposals(
        numbers=np.array((draft.uids, draft.rounds, np.ones_like(draft.uids))),
        tokens=np.zeros(shape, np.int32),
        candidates=np.zeros((*shape, TOP_K), np.int32),
        probs=np.zeros((*shape, TOP_K), np.float32),
        bins=np.zeros(shape, np.int8),
        draft_s=0.0,
    )


def null_hello(role: str) -> Hello:
    """Of a side whose models compute nothing: `verifier` or `drafter`."""
    return Hello(PROTOCOL_VERSION, role, "null", "null", "null", role)


@contextmanager
def _local_drafter() -> Iterator[Channel]:
    verifier, drafter = pair(null_hello("verifier"), null_hello("drafter"))
    answering = threading.Thread(target=_answer, args=(drafter,), daemon=True)
    answering.start()
    try:
        yield verifier
    finally:
        verifier.close()
        answering.join()


@contextmanager
def _remote_drafter() -> Iterator[Channel]:
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    secret = secrets.token_bytes(32)
    with tempfile.TemporaryDirectory(prefix="dspine-") as folder:
        endpoint = f"unix:{folder}/drafter.sock"
        process = context.Process(target=_serve, args=(endpoint, secret, theirs), daemon=True)
        process.start()
        try:
            if not ours.poll(_TIMEOUT_S):
                raise ChannelError(f"the other process was not ready after {_TIMEOUT_S:.0f} s")
            channel = connect(parse_endpoint(endpoint), null_hello("verifier"), secret, timeout_s=_TIMEOUT_S)
            yield channel
            channel.close()
        finally:
            process.kill()
            process.join()


def _serve(endpoint: str, secret: bytes, connection: Connection) -> None:
    joined: list[Channel] = []
    is_joined = threading.Event()

    def join(channel: Channel) -> None:
        joined.append(channel)
        is_joined.set()

    listener = Listener(parse_endpoint(endpoint), null_hello("drafter"), secret, join)
    connection.send("ready")
    is_joined.wait()
    _answer(joined[0])
    listener.close()

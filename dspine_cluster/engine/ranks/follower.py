"""A rank that follows: `python -m dspine_cluster.engine.ranks.follower` runs what the leading rank's pipe tells it.

It ends with the pipe, whatever it is doing.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
from pathlib import Path
from queue import SimpleQueue
from typing import BinaryIO

import torch

from dspine_cluster.config import limit_threads
from dspine_cluster.engine.cache_memory import EngineMemory
from dspine_cluster.engine.engine import Engine
from dspine_cluster.engine.ranks.group import SUM_TIMEOUT_S, RankGroup
from dspine_cluster.engine.ranks.orders import LoadOrder, PoolOrder
from dspine_cluster.engine.ranks.pipes import Tag, read_message, write_message
from dspine_cluster.engine.ranks.steps import Copy, Step, decode_step
from dspine_cluster.errors import DspineError
from dspine_cluster.models.sharding import Shard
from dspine_cluster.models.target import TargetModel
from dspine_cluster.models.weights import load_target


class FollowingEngine:
    """The same engine as the leading rank's, over this rank's heads, and without anything that chooses tokens."""

    def __init__(self, target: TargetModel, order: PoolOrder) -> None:
        self._engine = Engine(
            target,
            num_pages=order.num_pages,
            num_slots=order.num_slots,
            graph_buckets=order.graph_buckets,
        )
        memory = EngineMemory(self._engine.kv_pool, self._engine.feature_pool, self._engine.state_pool)
        self._copy = {
            Copy.PAGE: memory.copy_page,
            Copy.SAVE_STATE: memory.save_state,
            Copy.LOAD_STATE: memory.load_state,
        }

    def warm_up(self) -> None:
        assert self._engine.graphs is not None
        self._engine.graphs.warm_up()

    def run(self, step: Step) -> None:
        for kind, source, target in step.copies:
            self._copy[kind](source, target)
        states = self._engine.state_pool
        packed, num_blocks = step.packed, step.packed.num_blocks
        for start, slot in zip(packed.starts[num_blocks:], packed.state_slots[num_blocks:], strict=True):
            if start == 0:  # a request begins, in a slot that another had
                states.clear(slot)
        states.set_pending(packed.state_slots[:num_blocks], step.num_pending)
        self._engine.forward(packed)


class _Orders:
    """The leading rank's messages, read ahead. The process ends when they do, even in the middle of a sum."""

    def __init__(self, stream: BinaryIO) -> None:
        self._stream = stream
        self._messages: SimpleQueue[tuple[Tag, bytes] | None] = SimpleQueue()
        threading.Thread(target=self._read, daemon=True).start()

    def next(self) -> tuple[Tag, bytes] | None:
        return self._messages.get()

    def _read(self) -> None:
        while (message := read_message(self._stream)) is not None:
            self._messages.put(message)
        self._messages.put(None)
        threading.Event().wait(SUM_TIMEOUT_S)
        os._exit(1)


def main() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # of a terminal: the leading rank decides when to end
    limit_threads()
    answers = os.fdopen(os.dup(sys.stdout.fileno()), "wb")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # what libraries print is no answer
    orders = _Orders(sys.stdin.buffer)
    target: TargetModel | None = None
    engine: FollowingEngine | None = None
    group = RankGroup()
    while (message := orders.next()) is not None:
        tag, content = message
        if tag is Tag.STEP:
            assert engine is not None
            engine.run(decode_step(content))
        elif tag is Tag.LOAD:
            order = LoadOrder(**json.loads(content))
            shard = Shard(order.rank, order.num_ranks)
            device = torch.device(order.device)
            try:
                target = load_target(
                    Path(order.folder),
                    dtype=getattr(torch, order.dtype),
                    device=device,
                    shard=shard,
                    reduce=group.sum,
                )
            except (DspineError, torch.OutOfMemoryError) as error:
                write_message(answers, Tag.FAILED, str(error).encode())
                return
            write_message(answers, Tag.DONE)
            group.join(Path(order.meeting_folder), shard, device)
        elif tag is Tag.POOLS:
            assert target is not None
            engine = FollowingEngine(target, PoolOrder(**json.loads(content)))
            write_message(answers, Tag.DONE)
        elif tag is Tag.WARM_UP:
            assert engine is not None
            engine.warm_up()


if __name__ == "__main__":
    main()

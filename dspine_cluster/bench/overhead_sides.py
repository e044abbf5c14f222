"""The two sides of a round around models that compute nothing, each for a process of its own."""

from __future__ import annotations

import cProfile
import pstats
import time
from collections.abc import Collection, Sequence
from contextlib import nullcontext
from multiprocessing.connection import Connection
from random import Random
from typing import Any
from unittest import mock

from torch import Tensor

from dspine_cluster.bench.null_models import (
    DRAFTER_CONFIG,
    HIDDEN_SIZE,
    NullDrafter,
    NullProjector,
    NullTarget,
    look_up,
)
from dspine_cluster.bench.overhead_channel import null_hello
from dspine_cluster.bench.stopwatch import Round, Rounds, Stopwatch
from dspine_cluster.config import DraftingConfig, EngineConfig, VerifierConfig, limit_threads
from dspine_cluster.core.dynamic_verify_length import DynamicVerifyLength
from dspine_cluster.core.graph_buckets import GraphBuckets
from dspine_cluster.drafter.loop import DrafterLoop
from dspine_cluster.drafter.runner import DraftRunner
from dspine_cluster.engine import padded_batch, sampling
from dspine_cluster.engine.batch import PackedBatch
from dspine_cluster.engine.engine import Engine
from dspine_cluster.engine.inference import in_inference_mode
from dspine_cluster.engine.padded_batch import PaddedBatch
from dspine_cluster.errors import ChannelError
from dspine_cluster.garbage import collect_rarely
from dspine_cluster.models.folder import load_tokenizer
from dspine_cluster.sources import locate_model
from dspine_cluster.token_bytes import TokenBytes
from dspine_cluster.transport.socket import Listener, connect, parse_endpoint
from dspine_cluster.transport.waiter import Waiter
from dspine_cluster.types import PAGE_TOKENS, GenerateRequest, SamplingParams, StopConditions
from dspine_cluster.verifier import passes
from dspine_cluster.verifier.committed import Committed
from dspine_cluster.verifier.loop import VerifierLoop

PROMPT_TOKENS = 256
_MAX_TOKENS = 2048
_WARM_UP_ROUNDS = 150
"""Costs are learnt from all passes at first."""
_TIMEOUT_S = 20.0
_MAX_PASSES = 200
"""Beside those that are measured: prefill, and what exploration leaves without a block."""
_TOP_FUNCTIONS = 45


class DraftsForAll(DynamicVerifyLength):
    """Decides as it always does, and whatever it decides drafts for all at once: so all rounds are alike."""

    @property
    def drafts_newcomers(self) -> bool:
        return True

    @property
    def wants_features(self) -> bool:
        return True

    @property
    def has_halves(self) -> bool:
        return False

    def choose_drafts(self, uids: Sequence[int]) -> Collection[int]:
        super().choose_drafts(uids)
        return uids


class _NullEngine(Engine):
    """Counts layers and features as the model's, which on a GPU are one recorded launch."""

    def __init__(self, stopwatch: Stopwatch, num_requests: int, length: int) -> None:
        self._stopwatch = stopwatch
        super().__init__(
            NullTarget(stopwatch),
            num_pages=(length + PAGE_TOKENS) * num_requests // PAGE_TOKENS,
            num_slots=num_requests,
            projector=NullProjector(),
            tapped_layers=DRAFTER_CONFIG.target_layer_ids,
            feature_size=HIDDEN_SIZE,
            graph_buckets=GraphBuckets(num_requests, DRAFTER_CONFIG.block_size),
        )
        self.feature_pool.storage.zero_()  # or the first write to each page would be counted

    def _run(self, batch: PackedBatch | PaddedBatch, with_features: bool = True) -> Tensor:
        with self._stopwatch.in_model():
            return super()._run(batch, with_features)


class VerifierBench:
    """A verifier loop whose requests never end, driven in this thread."""

    def __init__(self, num_requests: int, *, samples: bool) -> None:
        """Without `samples` tokens are looked up rather than chosen from logits."""
        self._samples = samples
        self._stopwatch = Stopwatch()
        self._num_requests = num_requests
        self._waiter = _TimedWaiter()
        self.delivery_s: list[float] = []
        """CPU time in which texts were made of what a pass committed: beside the loop."""
        self._committed: Sequence[Committed] = ()
        length = PROMPT_TOKENS + _MAX_TOKENS
        config = EngineConfig(
            max_model_len_tokens=length,
            pool_tokens=(length + PAGE_TOKENS) * num_requests,
            max_running_requests=num_requests,
            max_batch_tokens=17 * num_requests + PROMPT_TOKENS,
        )
        engine = _NullEngine(self._stopwatch, num_requests, length)
        self.loop = VerifierLoop(
            engine,
            TokenBytes(load_tokenizer(locate_model(VerifierConfig().target))),
            engine_config=config,
            drafting_config=DraftingConfig(late_factor=1e6, first_deadline_s=60.0),
            policy=DraftsForAll(Random(0), buckets=engine.token_sizes),
            block_size=DRAFTER_CONFIG.block_size,
            mask_token_id=DRAFTER_CONFIG.mask_token_id,
            deliver=self._deliver,
            on_drafter_lost=lambda endpoint, is_faulty: None,
            random_seed=0,
            clock=self._stopwatch.clock,
        )

    def connect(self, endpoint: str, secret: bytes) -> None:
        channel = connect(parse_endpoint(endpoint), null_hello("verifier"), secret, timeout_s=30.0)
        self._waiter.watch(channel)
        self.loop.drafters.connect(endpoint, channel)

    @in_inference_mode
    def run(self, num_rounds: int, *, profile: bool) -> list[Round]:
        """Let all requests decode; the rounds in which all had a block."""
        stop = StopConditions(max_tokens=_MAX_TOKENS, ignore_eos=True)
        for uid in range(self._num_requests):
            prompt = tuple((uid + 31 * position) % 1000 for position in range(PROMPT_TOKENS))
            params = SamplingParams(temperature=uid % 2)
            self.loop.submit(uid, GenerateRequest("bench", prompt, params, stop))
        profiler = cProfile.Profile() if profile else None
        rounds = Rounds(self._stopwatch)
        verify = sampling.verify

        def timed(*args: Any, **kwargs: Any) -> Any:
            with self._stopwatch.in_sampling():
                return verify(*args, **kwargs) if self._samples else look_up(args[1])

        with (
            mock.patch.object(passes, "verify", timed),
            # Passes are given what they would be on a GPU: buffers padded to a bucket, and no index tensors of the
            # torch forms, which are part of the model.
            mock.patch.object(padded_batch, "uses_triton", return_value=True),
        ):
            self._run_rounds(rounds, _WARM_UP_ROUNDS)
            measured = Rounds(self._stopwatch, profiler)
            self._run_rounds(measured, num_rounds)
        _print_profile("verifier", self._num_requests, profiler, num_rounds)
        return measured.done

    def _deliver(self, committed: Sequence[Committed]) -> None:
        self._committed = committed

    def _make_texts(self) -> None:
        """What an event loop does with what it is given, which it then lets go."""
        start_s = time.thread_time()
        for own in self._committed:
            own.output()
        self._committed = ()
        self.delivery_s.append(time.thread_time() - start_s)

    def _run_rounds(self, rounds: Rounds, num_rounds: int) -> None:
        self.delivery_s.clear()
        metrics, fallbacks = self.loop.metrics, self.loop.drafters.fallbacks
        num_passes = 0
        self._waiter.rounds = rounds
        while len(rounds.done) < num_rounds:
            if num_passes > _MAX_PASSES + 2 * num_rounds:
                raise ChannelError(
                    f"only {len(rounds.done)} of {num_passes} passes had a block for every request"
                )
            num_before, plain_before = metrics.rounds_total, fallbacks.total()
            self._waiter.clear()
            with rounds:
                wait_s = self.loop.step()
                rest_s = self.loop.rest_s() if wait_s is None else wait_s
            if wait_s is None:
                self._make_texts()
                num_passes += 1
                num_rounds_run = metrics.rounds_total - num_before
                rounds.end(counts=num_rounds_run == self._num_requests and fallbacks.total() == plain_before)
            if rest_s > 0.0:
                self._waiter.wait(min(rest_s, _TIMEOUT_S))


class _TimedWaiter(Waiter):
    """Counts what waiting takes: messages are read in it."""

    def __init__(self) -> None:
        super().__init__()
        self.rounds: Rounds | None = None

    def wait(self, timeout_s: float) -> bool:
        with nullcontext() if self.rounds is None else self.rounds.waiting:
            return super().wait(timeout_s)


class _TimedLoop(DrafterLoop):
    """Counts a round when as many blocks were drafted as there are requests."""

    def __init__(
        self, num_requests: int, stopwatch: Stopwatch, profile: cProfile.Profile | None, *, samples: bool
    ) -> None:
        runner = DraftRunner(
            NullDrafter(stopwatch, walks=samples),
            num_requests * ((PROMPT_TOKENS + _MAX_TOKENS) // PAGE_TOKENS + 1),
            random_seed=0,
        )
        super().__init__(runner, max_context_tokens=PROMPT_TOKENS + _MAX_TOKENS)
        self._waiter = _TimedWaiter()
        self._waiter.rounds = self.rounds = Rounds(stopwatch, profile)
        self._num_requests = num_requests

    def step(self) -> bool:
        with self.rounds:
            did_answer = super().step()
        if self.counters.num_blocks >= (len(self.rounds.done) + 1) * self._num_requests:
            self.rounds.end()
        return did_answer


def serve_drafter(
    endpoint: str, secret: bytes, num_requests: int, connection: Connection, *, samples: bool, profile: bool
) -> None:
    """Draft for that many requests in this process; `connection` is told when that can begin, and what it took."""
    limit_threads()
    collect_rarely()
    profiler = cProfile.Profile() if profile else None
    loop = _TimedLoop(num_requests, Stopwatch(), profiler, samples=samples)
    listener = Listener(parse_endpoint(endpoint), null_hello("drafter"), secret, loop.add_channel)
    loop.start()
    connection.send("ready")
    num_rounds = connection.recv()
    loop.stop()
    listener.close()
    _print_profile("drafter", num_requests, profiler, num_rounds)
    connection.send(loop.rounds.done[-num_rounds:])


def _print_profile(side: str, num_requests: int, profile: cProfile.Profile | None, num_rounds: int) -> None:
    if profile is not None:
        print(f"{side}, {num_requests} requests, {num_rounds} rounds")
        pstats.Stats(profile).sort_stats("tottime").print_stats(_TOP_FUNCTIONS)

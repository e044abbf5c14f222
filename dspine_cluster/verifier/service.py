"""A verifier replica's engine behind an async interface: one thread runs the loop, any event loop may call."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing
from itertools import count
from queue import Empty, SimpleQueue

from dspine_cluster.config import VerifierConfig
from dspine_cluster.core.cluster_records import ReplicaReport
from dspine_cluster.engine.grammar_state import CompiledGrammar
from dspine_cluster.engine.inference import in_inference_mode
from dspine_cluster.errors import EngineStoppedError, OverloadedError
from dspine_cluster.observability.timeline import Timeline, traced_phases
from dspine_cluster.observability.tracing import NO_TRACING, Tracing
from dspine_cluster.transport.channel import Channel
from dspine_cluster.transport.waiter import Waiter
from dspine_cluster.types import GenerateRequest, RoundOutput
from dspine_cluster.verifier.admission import admit
from dspine_cluster.verifier.capacity_report import CapacityReport
from dspine_cluster.verifier.committed import Committed
from dspine_cluster.verifier.connector import DrafterConnector
from dspine_cluster.verifier.grammars import Grammars
from dspine_cluster.verifier.load_report import LoadReport
from dspine_cluster.verifier.loading import LoadedVerifier, load_verifier, policy_for
from dspine_cluster.verifier.loop import VerifierLoop
from dspine_cluster.verifier.news_report import NewsReport
from dspine_cluster.verifier.sinks import Sink

_logger = logging.getLogger(__name__)

_STALL_S = 60.0
_IDLE_S = 1.0


class VerifierService:
    """Serves one target. Methods may be called from any thread."""

    def __init__(
        self,
        config: VerifierConfig,
        loaded: LoadedVerifier | None = None,
        tracing: Tracing = NO_TRACING,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Load the models unless they are given. `tracing` is the caller's to close; `clock` is the loop's.

        Raises:
            ConfigError, CheckpointError, MismatchError: the models cannot be served as configured.
        """
        loaded = loaded or load_verifier(config)
        drafter = loaded.drafter_config
        self.hello = loaded.hello
        self._engine = loaded.engine
        self._config = config.engine
        self._tracing = tracing
        self._vocab_size = loaded.engine.target.config.vocab_size
        self._mask_token_id = drafter.mask_token_id if drafter else None
        self._grammars = Grammars(
            loaded.token_bytes,
            eos_token_ids=loaded.engine.target.config.eos_token_ids,
            mask_token_id=self._mask_token_id,
            vocab_size=self._vocab_size,
        )
        self._loop = VerifierLoop(
            loaded.engine,
            loaded.token_bytes,
            engine_config=config.engine,
            drafting_config=config.drafting,
            policy=policy_for(config.drafting.verify, drafter, loaded.engine.token_sizes),
            block_size=drafter.block_size if drafter else 1,
            mask_token_id=self._mask_token_id,
            deliver=self._deliver,
            on_drafter_lost=self._on_drafter_lost,
            target_fingerprint=loaded.hello.target,
            drafter_fingerprint=loaded.hello.drafter,
            clock=clock,
        )
        self._connector = DrafterConnector(
            loaded.hello, config.secret.encode(), on_channel=self._on_channel, on_misfit=self._on_misfit
        )
        self._commands: SimpleQueue[Callable[[], None]] = SimpleQueue()
        self._waiter = Waiter()
        self._uids = count(1)
        self._sinks: dict[int, Sink] = {}
        self._load_report = LoadReport()
        self._capacity_report = CapacityReport(self._loop, self._command)
        self._news_report = NewsReport()
        self._taken_in: list[int] = []
        self._stopping = False
        self._failure: BaseException | None = None
        self._last_step_at_s = time.monotonic()
        self._thread = threading.Thread(target=self._run, name="verifier-loop", daemon=True)

    @property
    def max_requests(self) -> int:
        """Requests that it takes at a time, running and waiting."""
        return self._config.max_running_requests + self._config.max_waiting_requests

    def start(self) -> None:
        self._thread.start()
        self._connector.start()

    def stop(self) -> None:
        """End the loop; requests that still run fail with EngineStoppedError."""
        self._connector.stop()  # first, so that no channel comes that nobody would close
        self._grammars.stop()
        self._stopping = True
        self._waiter.set()
        self._thread.join()
        self._engine.close()

    async def generate(self, request: GenerateRequest) -> AsyncGenerator[RoundOutput, None]:
        """Yield what each round gives, as `rounds` does."""
        async with aclosing(self.rounds(request)) as batches:
            async for outputs in batches:
                for output in outputs:
                    yield output

    async def rounds(self, request: GenerateRequest) -> AsyncGenerator[list[RoundOutput], None]:
        """Yield what each round gives, several rounds at once to a caller that is slower than these; the last one
        carries `finish_reason`. Closing the iterator aborts.

        Raises:
            RequestError: the request cannot be served as it is.
            OverloadedError: too many requests wait.
            EngineStoppedError: the loop has ended.
        """
        admitted = admit(
            request,
            vocab_size=self._vocab_size,
            max_model_len_tokens=self._config.max_model_len_tokens,
            mask_token_id=self._mask_token_id,
        )
        grammar = None if request.grammar is None else await self._grammars.compile(request.grammar)
        if len(self._sinks) >= self.max_requests:
            raise OverloadedError("too many requests wait for this replica")
        uid = next(self._uids)
        sink = Sink(asyncio.get_running_loop())
        self._sinks[uid] = sink
        num_tokens = len(admitted.prompt_ids) + len(admitted.forced_output_ids)
        self._load_report.note_arrival(uid, admitted.request_id, num_tokens)
        with traced_phases(self._tracing, admitted) as trace:
            self._command(lambda: self._submit(uid, admitted, grammar, trace.timeline))
            try:
                # Asked after the sink is known: a loop that ends from here on tells the sink itself.
                if self._failure is not None or self._stopping:
                    raise EngineStoppedError("the engine loop has ended")
                while trace.finish_reason is None:
                    outputs = await sink.take()
                    trace.last = outputs[-1]
                    yield outputs
            finally:
                if self._sinks.pop(uid, None) is not None:
                    self._command(lambda: self._loop.abort(uid))

    def set_drafter_endpoints(self, endpoints: Sequence[str]) -> None:
        """The drafters to use from now on; connecting happens in the background."""
        kept = list(endpoints)
        self._connector.want(kept)
        self._command(lambda: self._loop.drafters.retain(kept))

    def check_health(self) -> None:
        """Raises EngineStoppedError when the loop has ended or no longer advances."""
        self._check_runs()
        self._engine.check()
        stalled_s = time.monotonic() - self._last_step_at_s
        if stalled_s > _STALL_S:
            raise EngineStoppedError(f"the engine loop has not advanced for {stalled_s:.0f} s")

    def take_report(self) -> ReplicaReport:
        """How busy it is, and what has changed since the last call. It never waits for the loop.

        Raises:
            EngineStoppedError: the loop has ended.
        """
        self._check_runs()
        load, admitted = self._load_report.take()
        added, removed = self._loop.prefix_events.take()
        news = self._news_report.take(
            self._loop.metrics, self._loop.drafters.attached, time.monotonic(), self.stats
        )
        return ReplicaReport(load, frozenset(added), frozenset(removed), admitted, news)

    def stats(self) -> dict[str, float]:
        """Figures by metric name."""
        drafters = self._loop.drafters
        fallbacks = {
            f"draft_fallback_total{{reason={reason}}}": n for reason, n in dict(drafters.fallbacks).items()
        }
        return {
            **self._loop.metrics.snapshot(),
            **self._loop.policy.figures(),
            **fallbacks,
            **self._tracing.figures(),
            "connected_drafters": drafters.num_connected,
        }

    async def autoscaling_stats(self) -> dict[str, float]:
        """What autoscaling goes by, as `core.autoscaling_report` has it; nothing before there is anything to tell."""
        return await self._capacity_report.take()

    def _check_runs(self) -> None:
        if self._failure is not None or not self._thread.is_alive():
            raise EngineStoppedError(f"the engine loop has ended: {self._failure!r}")

    @in_inference_mode
    def _run(self) -> None:
        try:
            while not self._stopping:
                self._waiter.clear()
                self._run_commands()
                wait_s = self._loop.step()
                self._last_step_at_s = time.monotonic()
                self._load_report.update(self._loop.load(), self._taken_in)
                self._taken_in.clear()
                if wait_s is None:
                    wait_s = self._loop.rest_s()
                if wait_s > 0.0:
                    self._waiter.wait(min(wait_s, _IDLE_S))
        except BaseException as error:
            self._failure = error
            _logger.exception("the engine loop failed; this replica must be restarted")
        finally:
            self._fail_all()
            self._run_commands()
            self._loop.drafters.close()

    def _run_commands(self) -> None:
        while True:
            try:
                command = self._commands.get_nowait()
            except Empty:
                return
            command()

    def _submit(
        self,
        uid: int,
        request: GenerateRequest,
        grammar: CompiledGrammar | None,
        timeline: Timeline | None,
    ) -> None:
        self._loop.submit(uid, request, grammar, timeline)
        self._taken_in.append(uid)

    def _command(self, command: Callable[[], None]) -> None:
        """Have the loop's thread run `command` before its next step."""
        self._commands.put(command)
        self._waiter.set()

    def _deliver(self, committed: Sequence[Committed]) -> None:
        """Hand what a pass committed to each event loop in one call; texts are made there, while the next pass runs."""
        batches: dict[asyncio.AbstractEventLoop, list[tuple[Sink, Committed | Exception]]] = {}
        for own in committed:
            sink = self._sinks.get(own.uid)
            if sink is not None:
                batches.setdefault(sink.event_loop, []).append((sink, own))
        for event_loop, batch in batches.items():
            _call_soon(event_loop, batch)

    def _fail_all(self) -> None:
        error = EngineStoppedError("the engine loop has ended")
        for sink in list(self._sinks.values()):
            _call_soon(sink.event_loop, [(sink, error)])

    def _on_channel(self, endpoint: str, channel: Channel) -> None:
        self._waiter.watch(channel)
        self._command(lambda: self._loop.drafters.connect(endpoint, channel))

    def _on_misfit(self, endpoint: str) -> None:
        self._command(lambda: self._loop.drafters.note_misfit(endpoint))

    def _on_drafter_lost(self, endpoint: str, is_faulty: bool) -> None:
        self._connector.lost(endpoint, is_faulty=is_faulty)


def _call_soon(
    event_loop: asyncio.AbstractEventLoop, batch: Sequence[tuple[Sink, Committed | Exception]]
) -> None:
    def put_all() -> None:
        for sink, item in batch:
            sink.put(item.output() if isinstance(item, Committed) else item)

    try:
        event_loop.call_soon_threadsafe(put_all)
    except RuntimeError:
        _logger.warning("an event loop closed before its requests ended")

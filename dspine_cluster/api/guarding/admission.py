"""What an ingress takes on at a time. Beyond it, clients are told when to come back, before anything is placed."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import aclosing, contextmanager
from dataclasses import replace

from dspine_cluster.api.answering.answers import Outputs
from dspine_cluster.api.generation import Generator, generate_all
from dspine_cluster.api.guarding.key_guard import over_limit
from dspine_cluster.api.guarding.keys import Caller, current_caller
from dspine_cluster.api.limits import check_num_completions
from dspine_cluster.api.request_tracing import current_trace
from dspine_cluster.errors import EngineStoppedError, OverloadedError
from dspine_cluster.observability.ingress_metrics import IngressMetrics
from dspine_cluster.types import GenerateRequest, RoundOutput


class Admission:
    """Counts the completions of all clients, and the tokens of prompts whose answers have not begun."""

    def __init__(
        self,
        max_open_requests: int,
        max_waiting_tokens: int,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._max_open_requests = max_open_requests
        self._max_waiting_tokens = max_waiting_tokens
        self._clock = clock
        self.metrics = IngressMetrics()
        self.num_open = 0
        """Completions that run or wait."""
        self.waiting_tokens = 0
        self.num_refused = 0
        self.is_draining = False
        """Nothing new is taken; what has begun goes on."""

    def stats(self) -> dict[str, float]:
        """Figures by metric name."""
        return {
            "open_requests": self.num_open,
            "waiting_prompt_tokens": self.waiting_tokens,
            "refused_requests_total": self.num_refused,
            **self.metrics.figures(),
        }

    def check_open(self) -> None:
        """Raises EngineStoppedError when nothing is taken any more."""
        if self.is_draining:
            raise EngineStoppedError("this server is about to stop")

    async def run(self, generator: Generator, requests: Sequence[GenerateRequest]) -> Outputs:
        """The outputs of one answer's completions, as the present caller's.

        Raises before the first output:
            RequestError: it asks for more completions than may ever run at a time.
            OverloadedError: it is too much at present, for the server or for the caller.
            EngineStoppedError: the server is about to stop.
        """
        caller = current_caller.get()
        with self._admitted(caller, requests) as ticket:
            owned = [_as_callers(request, caller) for request in requests]
            trace = current_trace.get()
            given = generate_all(generator, owned) if trace is None else trace.follow(generator, owned)
            async with aclosing(given) as outputs:
                async for index, output in outputs:
                    ticket.note(index, output)
                    yield index, output

    @contextmanager
    def _admitted(self, caller: Caller, requests: Sequence[GenerateRequest]) -> Iterator[_Ticket]:
        self.check_open()
        most = self._max_open_requests
        if caller.limiter is not None and caller.limiter.max_concurrent is not None:
            most = min(most, caller.limiter.max_concurrent)
        prompt_lengths = _prompt_lengths(requests)
        check_num_completions(len(requests), len(prompt_lengths), most)  # to come back later would never help
        prompt_tokens = sum(prompt_lengths)
        is_full = self.num_open + len(requests) > self._max_open_requests
        # One prompt is always taken, however long.
        is_busy = self.waiting_tokens > 0 and self.waiting_tokens + prompt_tokens > self._max_waiting_tokens
        if is_full or is_busy:
            self.num_refused += 1
            raise OverloadedError("too many requests are waiting")
        if caller.limiter is not None:
            excess = caller.limiter.open(len(requests), prompt_tokens, self._clock())
            if excess is not None:
                self.num_refused += 1
                raise over_limit(excess)
        ticket = _Ticket(self, prompt_tokens, len(requests), self._clock)
        self.num_open += len(requests)
        self.waiting_tokens += prompt_tokens
        try:
            yield ticket
        finally:
            ticket.begin()
            self.num_open -= len(requests)
            if caller.limiter is not None:
                caller.limiter.close(len(requests), ticket.output_tokens, self._clock())


class _Ticket:
    """One answer that was admitted."""

    def __init__(
        self, admission: Admission, prompt_tokens: int, num_completions: int, clock: Callable[[], float]
    ) -> None:
        self._admission = admission
        self._clock = clock
        self._opened_at_s = clock()
        self._last_at_s: dict[int, float] = {}  # index of a completion -> when it got its last tokens
        self._waiting_tokens = prompt_tokens
        self._unbegun = set(range(num_completions))
        self.output_tokens = 0

    def note(self, index: int, output: RoundOutput) -> None:
        """A completion got this."""
        if output.token_ids:
            self._note_tokens(index, len(output.token_ids))
        if self._unbegun:
            self._unbegun.discard(index)
            if not self._unbegun:
                self.begin()

    def _note_tokens(self, index: int, num_tokens: int) -> None:
        self.output_tokens += num_tokens
        now_s, last_at_s, metrics = self._clock(), self._last_at_s.get(index), self._admission.metrics
        if last_at_s is None:
            metrics.time_to_first_token_s.note(now_s - self._opened_at_s)
        else:
            metrics.inter_token_s.note((now_s - last_at_s) / num_tokens, num_tokens)
        self._last_at_s[index] = now_s

    def begin(self) -> None:
        """Its prompts wait no more."""
        self._admission.waiting_tokens -= self._waiting_tokens
        self._waiting_tokens = 0


def _prompt_lengths(requests: Sequence[GenerateRequest]) -> list[int]:
    """Of each prompt, once for all of its completions."""
    return list({id(request.prompt_ids): len(request.prompt_ids) for request in requests}.values())


def _as_callers(request: GenerateRequest, caller: Caller) -> GenerateRequest:
    if not caller.name:
        return request
    return replace(
        request,
        client=caller.name,
        client_share=caller.share,
        cache_salt=f"{caller.namespace}{request.cache_salt}",
    )

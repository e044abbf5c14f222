"""When a request entered each of its phases. The verifier's loop notes it; spans are made of it beside the loop."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise

from dspine_cluster.core.session import Phase, Session
from dspine_cluster.observability.tracing import Attributes, Tracing, kind_of
from dspine_cluster.types import FinishReason, GenerateRequest, RoundOutput, Usage

_NAMES = {Phase.WAITING: "queue", Phase.PREFILL: "prefill", Phase.DECODE: "decode"}


@dataclass(frozen=True, slots=True)
class Moment:
    """A phase begins, or the request ends."""

    at_s: float
    """Of the monotonic clock."""
    phase: Phase
    usage: Usage
    num_computed: int
    """Committed tokens that had passed through the target."""


class Timeline:
    """One thread writes; others may read what is there."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        """The request has arrived."""
        self._clock = clock
        self.moments = [Moment(clock(), Phase.WAITING, Usage(), 0)]
        self.ended: Moment | None = None
        self.drafter: str | None = None
        """Endpoint of the one that the request was attached to when it ended."""

    def note(self, session: Session) -> None:
        """The session has entered its phase."""
        self.moments.append(self._moment(session))

    def end(self, session: Session, drafter: str | None) -> None:
        """The session ends."""
        self.ended = self._moment(session)
        self.drafter = drafter

    def now(self, begun: Moment, last: RoundOutput | None) -> Moment:
        """A caller who was last given this leaves, in the phase that began so: it may know of more rounds, or fewer."""
        usage = begun.usage
        if last is not None and last.usage.num_rounds > usage.num_rounds:
            usage = last.usage
        return Moment(self._clock(), begun.phase, usage, begun.num_computed)

    def _moment(self, session: Session) -> Moment:
        return Moment(self._clock(), session.phase, session.usage, session.num_computed)


class PhaseTrace:
    """Of one request on a verifier."""

    def __init__(self, tracing: Tracing, request: GenerateRequest) -> None:
        self._tracing = tracing
        self._request = request
        self.timeline = Timeline() if tracing.is_on and request.traceparent else None
        """None where the request is not traced."""
        self.last: RoundOutput | None = None
        """What it was last given."""

    @property
    def finish_reason(self) -> FinishReason | None:
        return None if self.last is None else self.last.finish_reason

    def record(self, failure: str | None) -> None:
        """Make the spans. `failure` says why the last phase was cut off, if it was."""
        if self.timeline is None:
            return
        timeline, moments = self.timeline, list(self.timeline.moments)
        moments.append(timeline.ended or timeline.now(moments[-1], self.last))
        for begin, end in pairwise(moments):
            attributes = {**self._common(), **_figures(begin, end)}
            name = _NAMES[begin.phase]
            span = self._tracing.begin(name, self._request.traceparent, attributes, began_at_s=begin.at_s)
            if end is moments[-1]:
                if timeline.drafter is not None:
                    span.note({"dspine.drafter.endpoint": timeline.drafter})
                if self.finish_reason is not None:
                    span.note({"gen_ai.response.finish_reasons": [self.finish_reason]})
                elif failure is not None:
                    span.fail(failure)
            span.end(end.at_s)

    def _common(self) -> Attributes:
        return {"dspine.request.id": self._request.request_id, "dspine.verifier.id": self._tracing.replica_id}


@contextmanager
def traced_phases(tracing: Tracing, request: GenerateRequest) -> Iterator[PhaseTrace]:
    """What is told to it becomes spans when the context is left, however that happens."""
    trace = PhaseTrace(tracing, request)
    failure = None
    try:
        yield trace
    except BaseException as error:
        failure = kind_of(error)
        raise
    finally:
        trace.record(failure)


def _figures(begin: Moment, end: Moment) -> Attributes:
    if begin.phase is Phase.PREFILL:
        return {
            "gen_ai.usage.input_tokens": begin.usage.prompt_tokens,
            "dspine.cached_tokens": begin.num_computed,
        }
    if begin.phase is Phase.WAITING:
        return {}
    before, after = begin.usage, end.usage
    num_rounds = after.num_rounds - before.num_rounds
    num_committed = after.output_tokens - before.output_tokens
    figures: dict[str, int | float] = {
        "gen_ai.usage.output_tokens": after.output_tokens,
        "dspine.rounds": num_rounds,
        "dspine.proposed_tokens": after.proposed_tokens - before.proposed_tokens,
        "dspine.verified_tokens": after.verified_tokens - before.verified_tokens,
        "dspine.accepted_tokens": after.accepted_tokens - before.accepted_tokens,
    }
    if num_rounds:
        figures["dspine.acceptance_length"] = num_committed / num_rounds
    return figures

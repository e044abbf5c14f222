"""The log-probabilities of what a pass committed, read off its hidden states for the requests that ask for them.

The head is applied once more to their rows alone, so that other requests pay nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from dspine_cluster.core.batch_plan import BatchPlan, ChunkPlan
from dspine_cluster.core.session import Session
from dspine_cluster.engine.blocks import Verdicts
from dspine_cluster.engine.logprobs import token_logprobs
from dspine_cluster.types import Logprobs
from dspine_cluster.verifier.committed import Committed


@dataclass(slots=True)
class _Asked:
    """One request that asks for log-probabilities."""

    num_top: int
    prompt: Logprobs | None
    """Of the prompt's tokens from the second on, as far as they have been computed; None: not asked for."""
    output: Logprobs = field(default_factory=Logprobs)
    """Of the tokens that the last pass decided."""


@dataclass(slots=True)
class _Rows:
    """Rows of a pass that belong to one request."""

    asked: _Asked
    rows: range
    prompt_ids: Sequence[int]
    """The tokens that the first rows predict and that the prompt holds."""
    output_ids: Sequence[int]
    """The tokens that the other rows have decided."""


class LogprobsReader:
    """Reads them pass by pass, and gives them to the outputs of the round."""

    def __init__(self, logits: Callable[[Tensor], Tensor]) -> None:
        """`logits` applies the target's head to final hidden states `[num_rows, hidden_size]`."""
        self._logits = logits
        self._asked: dict[int, _Asked] = {}

    def add(self, session: Session) -> None:
        """Take in a new request, if it asks for any."""
        if session.request.num_top_logprobs is not None:
            prompt = Logprobs() if session.needs_whole_prompt else None
            self._asked[session.uid] = _Asked(session.request.num_top_logprobs, prompt)

    def forget(self, uid: int) -> None:
        self._asked.pop(uid, None)

    def read(self, plan: BatchPlan, hidden: Tensor, verdicts: Verdicts) -> None:
        """Note what a pass gave, before it is committed.

        `hidden` [num_tokens, hidden_size] are its final hidden states, those of blocks first; `verdicts` are those of
        its blocks, and then of the chunks that complete a prefill.
        """
        # A chunk that does not complete its prefill may have none.
        parts = (
            [part for part in self._parts(plan, verdicts, len(hidden)) if part.rows] if self._asked else []
        )
        if not parts:
            return
        index = torch.tensor([row for part in parts for row in part.rows], device=hidden.device)
        rows = hidden[index]
        logprobs = token_logprobs(
            lambda start, end: self._logits(rows[start:end]),
            [token for part in parts for token in (*part.prompt_ids, *part.output_ids)],
            max(part.asked.num_top for part in parts),
        )
        start = 0
        for part in parts:
            middle, end = start + len(part.prompt_ids), start + len(part.rows)
            if part.prompt_ids:
                assert part.asked.prompt is not None
                part.asked.prompt += _with_top(logprobs[start:middle], part.asked.num_top)
            part.asked.output = _with_top(logprobs[middle:end], part.asked.num_top)
            start = end

    def attach(self, committed: Sequence[Committed]) -> None:
        """Give what a pass committed its log-probabilities where they were asked for."""
        if not self._asked:
            return
        for own in committed:
            asked = self._asked.get(own.uid)
            if asked is None:
                continue
            own.logprobs = asked.output[: len(own.token_ids)]
            own.prompt_logprobs, asked.prompt = asked.prompt, None
            if own.finish_reason is not None:
                self.forget(own.uid)

    def _parts(self, plan: BatchPlan, verdicts: Verdicts, num_rows: int) -> Iterator[_Rows]:
        for number, session in enumerate(plan.blocks.sessions):
            if (asked := self._asked.get(session.uid)) is not None:
                token_ids, first_row = verdicts.committed(number), verdicts.starts[number]
                yield _Rows(asked, range(first_row, first_row + len(token_ids)), (), token_ids)
        number, first_row = len(plan.blocks), num_rows - sum(chunk.num_tokens for chunk in plan.chunks)
        for chunk in plan.chunks:
            token_ids = ()
            if chunk.completes_prefill:
                token_ids = verdicts.committed(number)
                number += 1
            if (asked := self._asked.get(chunk.session.uid)) is not None:
                yield _chunk_rows(asked, chunk, first_row, token_ids)
            first_row += chunk.num_tokens


def _chunk_rows(asked: _Asked, chunk: ChunkPlan, first_row: int, token_ids: Sequence[int]) -> _Rows:
    """The rows of a chunk that predict tokens of the prompt not read before, and the one that predicts output."""
    start = chunk.session.num_computed
    end = start + chunk.num_tokens
    prompt_ids: Sequence[int] = ()
    if asked.prompt is not None:
        num_read = max(start, len(asked.prompt))  # a preempted request starts its prompt anew
        prompt_ids = chunk.session.request.prompt_ids[num_read + 1 : end + 1]
    last_row = first_row + chunk.num_tokens
    num_rows = len(prompt_ids) + len(token_ids)
    return _Rows(asked, range(last_row - num_rows, last_row), prompt_ids, token_ids)


def _with_top(logprobs: Logprobs, num_top: int) -> Logprobs:
    """The same with fewer of the most likely tokens."""
    return Logprobs(
        logprobs.chosen,
        tuple(ids[:num_top] for ids in logprobs.top_ids),
        tuple(values[:num_top] for values in logprobs.top),
    )

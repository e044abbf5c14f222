"""Where a request ends, be it inside a block."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from dspine_cluster.types import FinishReason, StopConditions


def end_token_ids(conditions: StopConditions, eos_token_ids: Collection[int]) -> frozenset[int]:
    """The tokens that end a request under its conditions."""
    return frozenset(conditions.stop_token_ids).union(() if conditions.ignore_eos else eos_token_ids)


def cut_at_end(
    tokens: Sequence[int],
    *,
    num_output_before: int,
    conditions: StopConditions,
    eos_token_ids: Collection[int],
) -> tuple[int, FinishReason | None]:
    """How many of a round's tokens count, and why the request ends with the last of them, if it does.

    `num_output_before` is the number of output tokens before this round. The token that ends the request
    counts as output; whatever follows it never existed. An end token among the first `min_tokens` outputs
    does not end the request (sampling masks it there). An end token that is also the last of `max_tokens`
    gives STOP.
    """
    stop_ids = conditions.stop_token_ids
    ends = () if conditions.ignore_eos else eos_token_ids
    room = conditions.max_tokens - num_output_before
    if len(tokens) < room and not any(token in ends or token in stop_ids for token in tokens):
        return len(tokens), None
    ends = end_token_ids(conditions, eos_token_ids)
    for index, token in enumerate(tokens):
        output_index = num_output_before + index
        if token in ends and output_index >= conditions.min_tokens:
            return index + 1, FinishReason.STOP
        if output_index + 1 >= conditions.max_tokens:
            return index + 1, FinishReason.LENGTH
    return len(tokens), None

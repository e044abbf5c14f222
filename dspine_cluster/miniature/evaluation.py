"""Measure the pair on held-out prompts: right answers of the target, acceptance length of the drafters."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from dspine_cluster.miniature.continuations import target_states
from dspine_cluster.miniature.data.conversation import Conversation
from dspine_cluster.miniature.data.tools import expected_call
from dspine_cluster.miniature.decoding import SamplingPlan, sample
from dspine_cluster.miniature.drafter_loop import DrafterPair
from dspine_cluster.miniature.encoding import Encoder
from dspine_cluster.miniature.prompts import held_out
from dspine_cluster.miniature.templating import render_prompt
from dspine_cluster.models.draft_sampling import DraftSampling
from dspine_cluster.models.drafter import DraftContext
from dspine_cluster.models.target import TargetModel
from dspine_cluster.types import PAGE_TOKENS


@dataclass(frozen=True, slots=True)
class Answer:
    """One greedy answer to a held-out prompt."""

    asked: Conversation
    prompt_tokens: list[int]
    tokens: list[int]
    text: str


@dataclass(frozen=True, slots=True)
class Acceptance:
    """Greedy rounds over some answers."""

    rounds: int
    committed_tokens: int

    @property
    def length(self) -> float:
        """Committed tokens a round; 0 without a round."""
        return self.committed_tokens / max(1, self.rounds)


@dataclass(frozen=True, slots=True)
class CallScore:
    """How far answers are the tool calls that were expected."""

    expected: int
    valid_json: int
    """Tool calls that parse and have a name and arguments."""
    right_name: int
    right_arguments: int
    """Arguments with the expected value, in calls of the right tool."""
    expected_arguments: int


def answers(
    model: TargetModel, encoder: Encoder, task: str, count: int, seed: int, max_new_tokens: int = 256
) -> list[Answer]:
    """Greedy answers to held-out prompts of a task."""
    asked = held_out(task, count, seed)
    prompts = [encoder.encode(render_prompt(conversation)) for conversation in asked]
    plan = SamplingPlan(max_new_tokens, torch.zeros(count), torch.Generator())
    continued = sample(model, prompts, plan)
    texts = [encoder.tokenizer.decode(tokens) for tokens in continued]
    return [Answer(*parts) for parts in zip(asked, prompts, continued, texts, strict=True)]


def is_right(answer: Answer) -> bool:
    """The number after `Answer:` is the expected one, or the tool call is the expected one, arguments included."""
    expected = answer.asked.expected
    assert expected is not None
    if not expected.startswith("{"):
        return answer.text.rsplit("Answer:", 1)[-1].strip().rstrip(".") == expected
    call = tool_call(answer.text)
    return call is not None and expected_call(call["name"], call["arguments"]) == expected


def call_score(given: Sequence[Answer]) -> CallScore:
    """Compare with the calls that the prompts expect; other prompts do not count."""
    asked = [(a.asked.expected, a.text) for a in given if a.asked.expected is not None]
    expected = [json.loads(wanted) for wanted, _ in asked if wanted.startswith("{")]
    calls = [tool_call(text) for wanted, text in asked if wanted.startswith("{")]
    right = [
        (call["arguments"], wanted["arguments"])
        for call, wanted in zip(calls, expected, strict=True)
        if call is not None and call["name"] == wanted["name"]
    ]
    return CallScore(
        expected=len(expected),
        valid_json=sum(call is not None for call in calls),
        right_name=len(right),
        right_arguments=sum(
            name in got and got[name] == value for got, wanted in right for name, value in wanted.items()
        ),
        expected_arguments=sum(len(wanted["arguments"]) for wanted in expected),
    )


def tool_call(text: str) -> dict[str, Any] | None:
    """The JSON of the first tool call in a text, or None where there is none or it is not valid."""
    inside = text.partition("<tool_call>")[2].partition("</tool_call>")[0]
    try:
        call = json.loads(inside)
    except ValueError:
        return None
    return (
        call
        if isinstance(call, dict) and isinstance(call.get("arguments"), dict) and "name" in call
        else None
    )


@torch.inference_mode()
def acceptance(model: TargetModel, pair: DrafterPair, given: Sequence[Answer]) -> Acceptance:
    """Draft greedily along the target's own greedy answers, full blocks; the first token belongs to no round."""
    return Acceptance(
        rounds=sum(_rounds(model, pair, answer) for answer in given),
        committed_tokens=sum(len(answer.tokens) - 1 for answer in given),
    )


def pooled(parts: Sequence[Acceptance]) -> Acceptance:
    """All of them together."""
    return Acceptance(sum(p.rounds for p in parts), sum(p.committed_tokens for p in parts))


def _rounds(model: TargetModel, pair: DrafterPair, answer: Answer) -> int:
    tokens = torch.tensor(answer.prompt_tokens + answer.tokens)
    taps, _ = target_states(model, tokens, pair.drafter.config.target_layer_ids)
    keys, values = pair.drafter.project_context(pair.projector(taps), torch.arange(len(tokens)))
    key_pages, value_pages = _paged(keys), _paged(values)
    context = DraftContext(
        key_pages,
        value_pages,
        page_table=torch.arange(key_pages.shape[1]).unsqueeze(0),
        first_pages=torch.zeros(1, dtype=torch.int64),
        starts=torch.zeros(1, dtype=torch.int64),
    )
    anchor, rounds = len(answer.prompt_tokens), 0
    while anchor < len(tokens) - 1:
        drafted = pair.drafter.draft(
            tokens[anchor : anchor + 1], torch.tensor([anchor]), context, DraftSampling.greedy(1)
        ).tokens[0]
        truth = tokens[anchor + 1 : anchor + 1 + len(drafted)]
        accepted = int((drafted[: len(truth)] == truth).int().cumprod(0).sum())
        anchor += accepted + 1
        rounds += 1
    return rounds


def _paged(rows: Tensor) -> Tensor:
    """`[num_layers, n, heads, dim]` to `[num_layers, num_pages, 16, heads, dim]`, zeros at the end."""
    padded = torch.nn.functional.pad(rows, (0, 0, 0, 0, 0, -rows.shape[1] % PAGE_TOKENS))
    return padded.view(len(padded), -1, PAGE_TOKENS, *padded.shape[2:])

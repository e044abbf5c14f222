"""Conversations for a running application, and what their answers say about routing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from random import Random
from typing import Any

from dspine_cluster.bench.statistics import quantile
from dspine_cluster.miniature.data.conversation import Split
from dspine_cluster.miniature.data.history import QUESTION_TASKS
from dspine_cluster.miniature.data.mixture import TASKS


@dataclass(frozen=True, slots=True)
class LiveSettings:
    """What a trace is made of."""

    num_conversations: int = 24
    conversations_per_s: float = 1.0
    """Start as a Poisson process."""
    num_system_prompts: int = 4
    """Their popularity falls as 1 / rank."""
    num_examples: int = 6
    """Questions with answers in each system prompt; about 60 tokens each."""
    max_turns: int = 4
    """Each conversation has two to this many."""
    mean_gap_s: float = 1.0
    """Between an answer and the next turn."""
    max_tokens: int = 48
    """Of each answer."""
    seed: int = 1


@dataclass(frozen=True, slots=True)
class LiveTurn:
    gap_s: float
    """After the last answer, or after the start of the trace."""
    content: str


@dataclass(frozen=True, slots=True)
class LiveConversation:
    """The answers between the turns are the application's own."""

    system: str
    turns: tuple[LiveTurn, ...]


@dataclass(frozen=True, slots=True)
class LiveAnswer:
    """What one request got."""

    ttft_s: float
    prompt_tokens: int
    cached_tokens: int
    output_tokens: int


def make_live_trace(settings: LiveSettings) -> list[LiveConversation]:
    """Conversations in order of their start; equal settings give equal ones."""
    random = Random(settings.seed)
    systems = [_system_prompt(random, settings.num_examples) for _ in range(settings.num_system_prompts)]
    popularity = list(accumulate(1 / rank for rank in range(1, len(systems) + 1)))
    start_s = 0.0
    trace = []
    for _ in range(settings.num_conversations):
        start_s += random.expovariate(settings.conversations_per_s)
        gaps_s = [
            random.expovariate(1 / settings.mean_gap_s)
            for _ in range(random.randint(1, settings.max_turns - 1))
        ]
        turns = tuple(LiveTurn(gap_s, _question(random)[0]) for gap_s in (start_s, *gaps_s))
        trace.append(LiveConversation(random.choices(systems, cum_weights=popularity)[0], turns))
    return trace


def summarise_live(
    answers: Sequence[LiveAnswer], before: Mapping[str, float], after: Mapping[str, float]
) -> dict[str, Any]:
    """Figures of a run; `before` and `after` are the ingresses' counters around it."""

    def counted(prefix: str) -> float:
        return sum(after[name] - before.get(name, 0.0) for name in after if name.startswith(prefix))

    ttfts_s = sorted(answer.ttft_s for answer in answers)
    prompt_tokens = sum(answer.prompt_tokens for answer in answers)
    num_placements = counted("placements_total")
    return {
        "num_requests": len(answers),
        "mean_prompt_tokens": prompt_tokens / len(answers),
        "cached_token_ratio": sum(answer.cached_tokens for answer in answers) / prompt_tokens,
        "ttft_p50_s": quantile(ttfts_s, 0.5),
        "ttft_p99_s": quantile(ttfts_s, 0.99),
        "colocated_ratio": counted("colocated_placements_total") / num_placements,
        "placements": {
            name.partition("reason=")[2].rstrip("}"): after[name] - before.get(name, 0.0)
            for name in sorted(after)
            if name.startswith("placements_total")
        },
    }


def _system_prompt(random: Random, num_examples: int) -> str:
    examples = [_question(random) for _ in range(num_examples)]
    text = "\n".join(f"Question: {question}\nAnswer: {answer}" for question, answer in examples)
    return f"You answer questions briefly and politely, as in these examples.\n{text}"


def _question(random: Random) -> tuple[str, str]:
    """A question of the held-out data, and its answer."""
    question, answer = TASKS[random.choice(QUESTION_TASKS)](random, Split.HELD_OUT).messages[:2]
    return question["content"], answer["content"]

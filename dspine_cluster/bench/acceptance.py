"""How many tokens a round commits, by task and drafter, and that the text stays plain decoding's."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import combinations
from typing import Any

from dspine_cluster.bench.environment import describe_environment
from dspine_cluster.bench.statistics import pooled_interval, ratio_interval
from dspine_cluster.config import ModelSource, VerifierConfig
from dspine_cluster.errors import ConfigError
from dspine_cluster.local_pair import local_pair
from dspine_cluster.types import MAX_PROPOSALS, GenerateRequest, SamplingParams, StopConditions, Usage
from dspine_cluster.verifier.service import VerifierService

Progress = Callable[[str, str], None]
"""Called with (drafter, task) after each prompt."""


@dataclass(frozen=True, slots=True)
class AcceptanceSettings:
    """What to run. Plain decoding always runs first: it is the truth for mismatches and the base of speed-ups."""

    drafters: tuple[str, ...]
    temperature: float
    concurrency: int
    max_tokens: int


@dataclass(frozen=True, slots=True)
class PromptRun:
    """One prompt's answer."""

    token_ids: tuple[int, ...]
    usage: Usage
    first_token_s: float
    """From when it was sent to its first tokens: waiting and prefill."""
    seconds: float
    """To its last ones."""

    @property
    def committed_tokens(self) -> int:
        """Tokens committed by rounds; the one that prefill yields belongs to none."""
        return len(self.token_ids) - 1


@dataclass(frozen=True, slots=True)
class TaskRun:
    """One task with one drafter."""

    prompts: list[PromptRun]
    seconds: float
    verified_per_position: list[float]
    accepted_per_position: list[float]

    @property
    def rounds(self) -> int:
        return sum(run.usage.num_rounds for run in self.prompts)

    @property
    def committed_tokens(self) -> int:
        return sum(run.committed_tokens for run in self.prompts)

    @property
    def tokens_per_s(self) -> float:
        return sum(len(run.token_ids) for run in self.prompts) / self.seconds

    @property
    def acceptance_length(self) -> float:
        return self.committed_tokens / max(1, self.rounds)


def run_acceptance(
    config: VerifierConfig,
    settings: AcceptanceSettings,
    workload: Mapping[str, Sequence[Sequence[int]]],
    progress: Progress,
) -> dict[str, Any]:
    """Run every drafter over the workload and report as `dspine bench acceptance --json` writes it.

    Raises:
        ConfigError: every answer ended with its first token, which belongs to no round.
    """
    drafters = ["none", *(name for name in settings.drafters if name != "none")]
    runs = {name: _run_drafter(config, name, settings, workload, progress) for name in drafters}
    return {
        "environment": describe_environment() | {"verify": config.drafting.verify},
        "results": [
            _result(task, name, settings, runs[name][task], runs["none"][task])
            for name in drafters
            for task in workload
        ],
        "pooled": {name: _pooled(runs[name]) for name in drafters},
        "mean": {
            name: {"acceptance_length": sum(r.acceptance_length for r in tasks.values()) / len(tasks)}
            for name, tasks in runs.items()
        },
        "pooled_ratios": _ratios(runs),
    }


def _run_drafter(
    config: VerifierConfig,
    drafter: str,
    settings: AcceptanceSettings,
    workload: Mapping[str, Sequence[Sequence[int]]],
    progress: Progress,
) -> dict[str, TaskRun]:
    source = ModelSource("none" if drafter == "none" else f"miniature-{drafter}")
    with local_pair(replace(config, drafter=source)) as verifier:
        return {
            task: asyncio.run(_run_task(verifier, prompts, settings, partial(progress, drafter, task)))
            for task, prompts in workload.items()
        }


async def run_prompts(
    verifier: VerifierService,
    prompts: Sequence[Sequence[int]],
    settings: AcceptanceSettings,
    done: Callable[[], None],
    clock: Callable[[], float] = time.perf_counter,
) -> tuple[list[PromptRun], float]:
    """Every prompt's answer, in order, and the seconds that all took by `clock`. `done` is called after each."""
    turn = asyncio.Semaphore(settings.concurrency)

    async def run(prompt: Sequence[int]) -> PromptRun:
        async with turn:
            tokens: list[int] = []
            request = GenerateRequest(
                "bench",
                tuple(prompt),
                SamplingParams(temperature=settings.temperature),
                StopConditions(max_tokens=settings.max_tokens),
            )
            sent_s = clock()
            first_token_s = 0.0
            async for output in verifier.generate(request):
                if not tokens:
                    first_token_s = clock() - sent_s
                tokens += output.token_ids
            seconds = clock() - sent_s
            done()
            return PromptRun(tuple(tokens), output.usage, first_token_s, seconds)

    started_s = clock()
    runs = await asyncio.gather(*map(run, prompts))
    return runs, clock() - started_s


async def _run_task(
    verifier: VerifierService,
    prompts: Sequence[Sequence[int]],
    settings: AcceptanceSettings,
    done: Callable[[], None],
) -> TaskRun:
    before = verifier.stats()
    runs, seconds = await run_prompts(verifier, prompts, settings, done)
    after = verifier.stats()

    def per_position(kind: str) -> list[float]:
        names = [f"{kind}_tokens_per_position_total{{position={j}}}" for j in range(1, MAX_PROPOSALS + 1)]
        return [after.get(name, 0.0) - before.get(name, 0.0) for name in names]

    return TaskRun(runs, seconds, per_position("verified"), per_position("accepted"))


def _result(
    task: str, drafter: str, settings: AcceptanceSettings, run: TaskRun, plain: TaskRun
) -> dict[str, Any]:
    greedy = settings.temperature == 0.0
    pairs = zip(run.prompts, plain.prompts, strict=True)
    return {
        "task": task,
        "drafter": drafter,
        "temperature": settings.temperature,
        "concurrency": settings.concurrency,
        "prompts": len(run.prompts),
        "rounds": run.rounds,
        "committed_tokens": run.committed_tokens,
        "acceptance_length": run.acceptance_length,
        "accepted_per_position": [
            accepted / verified if verified else None
            for accepted, verified in zip(run.accepted_per_position, run.verified_per_position, strict=True)
        ],
        "tokens_per_s": run.tokens_per_s,
        "speedup_over_none": run.tokens_per_s / plain.tokens_per_s,
        "greedy_mismatches": sum(a.token_ids != b.token_ids for a, b in pairs) if greedy else None,
    }


def _columns(*runs: Mapping[str, TaskRun]) -> list[tuple[list[float], list[float]]]:
    """(committed tokens, rounds) of each run, of the prompts that had a round in all of them."""
    prompts = zip(*([p for task in run.values() for p in task.prompts] for run in runs), strict=True)
    drafted = [of_runs for of_runs in prompts if all(p.usage.num_rounds for p in of_runs)]
    if not drafted:
        raise ConfigError("every answer ended with its first token; take more --prompts")
    return [
        ([float(p.committed_tokens) for p in of_run], [float(p.usage.num_rounds) for p in of_run])
        for of_run in zip(*drafted, strict=True)
    ]


def _pooled(runs: Mapping[str, TaskRun]) -> dict[str, Any]:
    ((committed, rounds),) = _columns(runs)
    return {
        "acceptance_length": sum(committed) / sum(rounds),
        "ci95": list(pooled_interval(committed, rounds)),
    }


def _ratios(runs: Mapping[str, Mapping[str, TaskRun]]) -> dict[str, Any]:
    """Pooled acceptance length of each drafter over each later one, prompts resampled together."""
    ratios = {}
    for first, second in combinations([name for name in runs if name != "none"], 2):
        (a, b), (c, d) = _columns(runs[first], runs[second])
        ratios[f"{first}/{second}"] = {
            "ratio": (sum(a) / sum(b)) / (sum(c) / sum(d)),
            "ci95": list(ratio_interval((a, b), (c, d))),
        }
    return ratios

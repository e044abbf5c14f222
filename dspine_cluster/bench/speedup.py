"""Tokens a second of a served pair over plain decoding, by the number of requests at the same time."""

from __future__ import annotations

import asyncio
import secrets
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from math import ceil
from typing import Any

from dspine_cluster.bench.acceptance import AcceptanceSettings, PromptRun, run_prompts
from dspine_cluster.bench.drafter_process import drafter_process
from dspine_cluster.bench.environment import describe_environment
from dspine_cluster.config import ModelSource, VerifierConfig
from dspine_cluster.local_pair import await_connection
from dspine_cluster.verifier.service import VerifierService

_PROMPTS_A_SLOT = 2
"""Prompts of a turn for each request at the same time, so that its end, when few are left, weighs little."""

Workload = Mapping[str, Sequence[Sequence[int]]]
"""Prompts by task."""


@dataclass(frozen=True, slots=True)
class SpeedupSettings:
    """What to run. In each turn both decode the same new prompts, one after the other, so that what else the machine
    does meets both."""

    concurrencies: tuple[int, ...]
    num_turns: int
    max_tokens: int

    def prompts_a_task(self, concurrency: int, num_tasks: int) -> int:
        """Of one turn."""
        return ceil(_PROMPTS_A_SLOT * concurrency / num_tasks)

    def num_prompts(self, num_tasks: int) -> int:
        """Prompts of each task that are needed in all, one to warm up included."""
        return 1 + sum(self.num_turns * self.prompts_a_task(c, num_tasks) for c in self.concurrencies)


@dataclass(slots=True)
class Side:
    """What one of the two has decoded at a concurrency."""

    prompts: list[PromptRun]
    seconds: list[float]
    figures: Counter[str]

    @property
    def num_tokens(self) -> int:
        return sum(len(run.token_ids) for run in self.prompts)

    @property
    def tokens_per_s(self) -> float:
        return self.num_tokens / sum(self.seconds)


def run_speedup(
    config: VerifierConfig, settings: SpeedupSettings, workload: Workload, progress: Callable[[str], None]
) -> dict[str, Any]:
    """Compare `config` with plain decoding, greedily; the report is what `dspine bench speedup --json` writes.

    Args:
        config: of the drafted side.
        settings: how often and how many at the same time.
        workload: `settings.num_prompts` prompts of each task.
        progress: called with what runs after each prompt.
    """
    prompts = {task: iter(of_task) for task, of_task in workload.items()}

    def take(count: int) -> list[Sequence[int]]:
        """`count` new prompts of every task, mixed."""
        return [next(of_task) for _ in range(count) for of_task in prompts.values()]

    with _served(config) as drafted, _served(replace(config, drafter=ModelSource("none"))) as plain:
        verifiers = {"dspine": drafted, "none": plain}

        def run(name: str, side: Side, batch: Sequence[Sequence[int]], concurrency: int) -> None:
            of_run = AcceptanceSettings((name,), 0.0, concurrency, settings.max_tokens)
            before = Counter(verifiers[name].stats())
            runs, seconds = asyncio.run(
                run_prompts(
                    verifiers[name], batch, of_run, lambda: progress(f"{name}, {concurrency} at a time")
                )
            )
            side.prompts += runs
            side.seconds.append(seconds)
            side.figures.update(verifiers[name].stats())
            side.figures.subtract(before)

        warm_up = take(1)
        for name in verifiers:
            run(name, _new_side(), warm_up, 1)
        results = []
        for concurrency in settings.concurrencies:
            sides = {name: _new_side() for name in verifiers}
            for turn in range(settings.num_turns):
                batch = take(settings.prompts_a_task(concurrency, len(workload)))
                for name in list(sides) if turn % 2 else reversed(sides):
                    run(name, sides[name], batch, concurrency)
            results.append({"concurrency": concurrency} | _compare(sides["dspine"], sides["none"]))
    return {"environment": describe_environment() | {"verify": config.drafting.verify}, "results": results}


def _new_side() -> Side:
    return Side([], [], Counter())


def _compare(drafted: Side, plain: Side) -> dict[str, Any]:
    usages = [run.usage for run in drafted.prompts]
    num_rounds = max(1, sum(usage.num_rounds for usage in usages))
    pairs = zip(drafted.prompts, plain.prompts, strict=True)
    return {
        "prompts": len(drafted.prompts),
        "tokens_per_s": drafted.tokens_per_s,
        "tokens_per_s_none": plain.tokens_per_s,
        "speedup": drafted.tokens_per_s / plain.tokens_per_s,
        "speedup_by_turn": [b / a for a, b in zip(drafted.seconds, plain.seconds, strict=True)],
        "acceptance_length": sum(run.committed_tokens for run in drafted.prompts) / num_rounds,
        "verify_length_mean": sum(usage.verified_tokens for usage in usages) / num_rounds,
        "drafted_rounds_ratio": drafted.figures["drafted_rounds_total"] / num_rounds,
        "greedy_mismatches": sum(a.token_ids != b.token_ids for a, b in pairs),
        "figures": {name: count for name, count in sorted(drafted.figures.items()) if "_total" in name},
    }


@contextmanager
def _served(config: VerifierConfig) -> Iterator[VerifierService]:
    """A verifier in this process, its drafter in another one, as two replicas on one node."""
    config = replace(config, secret=secrets.token_hex(16))
    verifier = VerifierService(config)
    with ExitStack() as running:
        if config.drafter.name == "none":
            endpoints = []
        else:
            folder = running.enter_context(tempfile.TemporaryDirectory(prefix="dspine-"))
            endpoints = [f"unix:{folder}/drafter.sock"]
            running.enter_context(drafter_process(config, endpoints[0]))
        verifier.start()
        running.callback(verifier.stop)
        if endpoints:
            verifier.set_drafter_endpoints(endpoints)
            await_connection(verifier)
        yield verifier

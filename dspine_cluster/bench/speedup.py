"""Tokens a second of a served pair over plain decoding, by the number of requests at the same time."""

from __future__ import annotations

import asyncio
import secrets
import tempfile
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from math import ceil
from statistics import median
from typing import Any

from dspine_cluster.bench.acceptance import AcceptanceSettings, PromptRun, run_prompts
from dspine_cluster.bench.alternation import TurnClock, take_turns
from dspine_cluster.bench.drafter_process import drafter_process
from dspine_cluster.bench.environment import describe_environment
from dspine_cluster.bench.statistics import pooled_interval
from dspine_cluster.bench.workload import LONG, TASK_NAMES
from dspine_cluster.config import ModelSource, VerifierConfig
from dspine_cluster.garbage import collect_rarely
from dspine_cluster.local_pair import await_connection
from dspine_cluster.verifier.service import VerifierService

_PROMPTS_A_TURN = 20
"""At least, so that two turns hold what single prompts differ by."""
_PROMPTS_A_SLOT = 4
"""Prompts of a turn for each request at the same time, so that its end, when few are left, weighs little."""
_CLOSE_FROM = 4
"""Requests at the same time from which on drafting gives little: there twice as many turns tell it from chance."""

WITHOUT_LONG = "without the long prompts, whose reading takes the same time on both sides"
DEFAULT_TASKS: tuple[str, ...] = tuple(task for task in TASK_NAMES if task != LONG)

Workload = Mapping[str, Sequence[Sequence[int]]]
"""Prompts by task."""
Decoded = tuple[list[PromptRun], float]
"""Answers, and the seconds that they took."""


@dataclass(frozen=True, slots=True)
class SpeedupSettings:
    """What to run. In each turn both decode the same new prompts, a little of the one after a little of the other, so
    that what else the machine does meets both."""

    concurrencies: tuple[int, ...]
    num_turns: int
    """Of few requests at the same time."""
    max_tokens: int

    def turns_of(self, concurrency: int) -> int:
        return 2 * self.num_turns if concurrency >= _CLOSE_FROM else self.num_turns

    def prompts_a_task(self, concurrency: int, num_tasks: int) -> int:
        """Of one turn."""
        return ceil(max(_PROMPTS_A_TURN, _PROMPTS_A_SLOT * concurrency) / num_tasks)

    def num_prompts(self, num_tasks: int) -> int:
        """Prompts of each task that are needed in all, one to warm up included."""
        return 1 + sum(self.turns_of(c) * self.prompts_a_task(c, num_tasks) for c in self.concurrencies)


@dataclass(slots=True)
class Side:
    """What one of the two has decoded at a concurrency."""

    prompts: dict[str, list[PromptRun]]
    """By task."""
    seconds: list[float]
    """Of each turn."""
    figures: Counter[str]

    @property
    def all_prompts(self) -> list[PromptRun]:
        return [run for of_task in self.prompts.values() for run in of_task]

    @property
    def tokens_per_s(self) -> float:
        """Over the whole time, prefill included."""
        return sum(len(run.token_ids) for run in self.all_prompts) / sum(self.seconds)


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
        """`count` new prompts of every task, by turns."""
        return [next(of_task) for _ in range(count) for of_task in prompts.values()]

    clocks = {"dspine": TurnClock(), "none": TurnClock()}
    plain_config = replace(config, drafter=ModelSource("none"))
    with _served(config, clocks["dspine"]) as drafted, _served(plain_config, clocks["none"]) as plain:
        verifiers = {"dspine": drafted, "none": plain}
        collect_rarely()  # as replicas do

        def run(sides: Mapping[str, Side], batch: Sequence[Sequence[int]], concurrency: int) -> None:
            """In the order of `sides`."""
            first, second = sides

            def decode(name: str) -> Awaitable[Decoded]:
                of_run = AcceptanceSettings((name,), 0.0, concurrency, settings.max_tokens)
                tell = partial(progress, f"{concurrency} at a time")
                return run_prompts(verifiers[name], batch, of_run, tell, clocks[name].seconds)

            async def decode_both() -> tuple[Decoded, Decoded]:
                return await take_turns((clocks[first], decode(first)), (clocks[second], decode(second)))

            before = {name: Counter(verifier.stats()) for name, verifier in verifiers.items()}
            for name, (runs, seconds) in zip(sides, asyncio.run(decode_both()), strict=True):
                side = sides[name]
                for number, task in enumerate(workload):
                    side.prompts.setdefault(task, []).extend(runs[number :: len(workload)])
                side.seconds.append(seconds)
                side.figures.update(verifiers[name].stats())
                side.figures.subtract(before[name])

        run(_new_sides(), take(1), 1)  # warms up
        results = []
        for concurrency in settings.concurrencies:
            sides = _new_sides()
            for turn in range(settings.turns_of(concurrency)):
                batch = take(settings.prompts_a_task(concurrency, len(workload)))
                order = list(sides) if turn % 2 else list(reversed(sides))
                run({name: sides[name] for name in order}, batch, concurrency)
            results.append({"concurrency": concurrency} | _compare(sides["dspine"], sides["none"]))
    return {
        "environment": describe_environment() | {"verify": config.drafting.verify},
        "workload": describe_workload(list(workload)),
        "results": results,
    }


def describe_workload(tasks: Sequence[str]) -> dict[str, Any]:
    """What is decoded, and what is left out by default."""
    left_out = {} if LONG in tasks else {"left_out": {LONG: WITHOUT_LONG}}
    return {"tasks": list(tasks)} | left_out


def _new_sides() -> dict[str, Side]:
    return {name: Side({}, [], Counter()) for name in ("dspine", "none")}


def _compare(drafted: Side, plain: Side) -> dict[str, Any]:
    usages = [run.usage for run in drafted.all_prompts]
    num_rounds = max(1, sum(usage.num_rounds for usage in usages))
    pairs = zip(drafted.all_prompts, plain.all_prompts, strict=True)
    by_turn = [b / a for a, b in zip(drafted.seconds, plain.seconds, strict=True)]
    return {
        "prompts": len(usages),
        "tokens_per_s": drafted.tokens_per_s,
        "tokens_per_s_none": plain.tokens_per_s,
        "speedup": drafted.tokens_per_s / plain.tokens_per_s,
        "speedup_by_turn": by_turn,
        "speedup_median": median(by_turn),
        "speedup_ci95": list(pooled_interval(plain.seconds, drafted.seconds)),
        "decode_speedup": _decode_s(plain.all_prompts) / _decode_s(drafted.all_prompts),
        "prefill_share": _prefill_share(drafted.all_prompts),
        "prefill_share_none": _prefill_share(plain.all_prompts),
        "acceptance_length": _acceptance_length(drafted.all_prompts),
        "verify_length_mean": sum(usage.verified_tokens for usage in usages) / num_rounds,
        "drafted_rounds_ratio": drafted.figures["drafted_rounds_total"] / num_rounds,
        "greedy_mismatches": sum(a.token_ids != b.token_ids for a, b in pairs),
        "by_task": {
            task: _compare_task(of_task, plain.prompts[task]) for task, of_task in drafted.prompts.items()
        },
        "figures": {name: count for name, count in sorted(drafted.figures.items()) if "_total" in name},
    }


def _compare_task(drafted: Sequence[PromptRun], plain: Sequence[PromptRun]) -> dict[str, Any]:
    """By the time that requests took, others of the same time beside them."""
    return {
        "prompts": len(drafted),
        "tokens": sum(len(run.token_ids) for run in drafted),
        "speedup": sum(run.seconds for run in plain) / sum(run.seconds for run in drafted),
        "decode_speedup": _decode_s(plain) / _decode_s(drafted),
        "prefill_share_none": _prefill_share(plain),
        "acceptance_length": _acceptance_length(drafted),
    }


def _decode_s(runs: Sequence[PromptRun]) -> float:
    """From first tokens to last ones."""
    return sum(run.seconds - run.first_token_s for run in runs)


def _prefill_share(runs: Sequence[PromptRun]) -> float:
    """Of the time of requests, the part before their first token."""
    return sum(run.first_token_s for run in runs) / sum(run.seconds for run in runs)


def _acceptance_length(runs: Sequence[PromptRun]) -> float:
    return sum(run.committed_tokens for run in runs) / max(1, sum(run.usage.num_rounds for run in runs))


@contextmanager
def _served(config: VerifierConfig, clock: TurnClock) -> Iterator[VerifierService]:
    """A verifier in this process, its drafter in another one, as two replicas on one node."""
    config = replace(config, secret=secrets.token_hex(16))
    verifier = VerifierService(config, clock=clock)
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

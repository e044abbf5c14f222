from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import pytest

from dspine_cluster.bench import speedup
from dspine_cluster.bench.acceptance import AcceptanceSettings, PromptRun
from dspine_cluster.bench.alternation import TurnClock
from dspine_cluster.bench.speedup import DEFAULT_TASKS, SpeedupSettings, describe_workload, run_speedup
from dspine_cluster.config import VerifierConfig
from dspine_cluster.types import Usage

SETTINGS = SpeedupSettings(concurrencies=(1, 8), num_turns=2, max_tokens=8)


class FakeVerifier:
    """Answers every prompt with three tokens, the drafted one in half the rounds. Prefill takes a second on both sides,
    decoding one second drafted and three plain."""

    def __init__(self, name: str) -> None:
        self.is_drafted = name != "none"
        self.batches: list[tuple[int, list[Sequence[int]]]] = []

    def stats(self) -> dict[str, float]:
        num_prompts = sum(len(prompts) for _, prompts in self.batches)
        return {"drafted_rounds_total": num_prompts * self.is_drafted, "connected_drafters": 1.0}

    def run(
        self, prompts: Sequence[Sequence[int]], settings: AcceptanceSettings
    ) -> tuple[list[PromptRun], float]:
        self.batches.append((settings.concurrency, list(prompts)))
        usage = Usage(num_rounds=1, verified_tokens=5) if self.is_drafted else Usage(num_rounds=2)
        seconds = 2.0 if self.is_drafted else 4.0
        return [PromptRun((1, 2, 3), usage, 1.0, seconds) for _ in prompts], seconds * len(prompts)


@pytest.fixture
def verifiers(monkeypatch: pytest.MonkeyPatch) -> dict[str, FakeVerifier]:
    made: dict[str, FakeVerifier] = {}

    @contextmanager
    def served(config: VerifierConfig, clock: TurnClock) -> Iterator[FakeVerifier]:
        yield made.setdefault(config.drafter.name, FakeVerifier(config.drafter.name))

    async def run(
        verifier: FakeVerifier, prompts: Any, settings: AcceptanceSettings, done: Any, clock: Any
    ) -> Any:
        return verifier.run(prompts, settings)

    monkeypatch.setattr(speedup, "_served", served)
    monkeypatch.setattr(speedup, "run_prompts", run)
    return made


def report() -> list[dict[str, Any]]:
    count = SETTINGS.num_prompts(num_tasks=2)
    workload = {str(task): [[task, i] for i in range(count)] for task in (10, 20)}
    results: list[dict[str, Any]] = run_speedup(VerifierConfig(), SETTINGS, workload, lambda at: None)[
        "results"
    ]
    return results


@pytest.mark.usefixtures("verifiers")
def test_a_row_compares_what_both_decoded() -> None:
    first, second = report()
    assert (first["concurrency"], first["prompts"]) == (1, 40)
    assert (second["concurrency"], second["prompts"]) == (8, 128), "twice as many turns"
    assert (first["tokens_per_s"], first["tokens_per_s_none"], first["speedup"]) == (1.5, 0.75, 2.0)
    assert first["speedup_by_turn"] == [2.0, 2.0]
    assert len(second["speedup_by_turn"]) == 4
    assert (first["acceptance_length"], first["verify_length_mean"]) == (2.0, 5.0)
    assert (first["drafted_rounds_ratio"], first["greedy_mismatches"]) == (1.0, 0)


@pytest.mark.usefixtures("verifiers")
def test_decoding_is_told_apart_from_prefill_and_tasks_from_each_other() -> None:
    row = report()[0]
    assert (row["decode_speedup"], row["prefill_share"], row["prefill_share_none"]) == (3.0, 0.5, 0.25)
    assert list(row["by_task"]) == ["10", "20"]
    for of_task in row["by_task"].values():
        assert (of_task["prompts"], of_task["tokens"], of_task["acceptance_length"]) == (20, 60, 2.0)
        assert (of_task["speedup"], of_task["decode_speedup"], of_task["prefill_share_none"]) == (
            2.0,
            3.0,
            0.25,
        )


def test_the_interval_of_a_speedup_is_that_of_its_turns(
    verifiers: dict[str, FakeVerifier], monkeypatch: pytest.MonkeyPatch
) -> None:
    honest = FakeVerifier.run

    def slow_at_times(
        self: FakeVerifier, prompts: Any, settings: AcceptanceSettings
    ) -> tuple[list[PromptRun], float]:
        runs, seconds = honest(self, prompts, settings)
        return runs, seconds * (2.0 if self.is_drafted and len(self.batches) % 2 else 1.0)

    monkeypatch.setattr(FakeVerifier, "run", slow_at_times)
    row = report()[1]
    assert sorted(row["speedup_by_turn"]) == [1.0, 1.0, 2.0, 2.0]
    assert row["speedup_median"] == 1.5
    low, high = row["speedup_ci95"]
    assert 1.0 <= low < row["speedup"] < high <= 2.0


def test_a_task_s_answers_stay_with_it(
    verifiers: dict[str, FakeVerifier], monkeypatch: pytest.MonkeyPatch
) -> None:
    honest = FakeVerifier.run

    def slow_at_20(
        self: FakeVerifier, prompts: Any, settings: AcceptanceSettings
    ) -> tuple[list[PromptRun], float]:
        runs, seconds = honest(self, prompts, settings)
        slowed = [replace(r, seconds=4.0) if p[0] == 20 else r for p, r in zip(prompts, runs, strict=True)]
        return slowed, seconds

    monkeypatch.setattr(FakeVerifier, "run", slow_at_20)
    by_task = report()[0]["by_task"]
    assert {task: row["speedup"] for task, row in by_task.items()} == {"10": 2.0, "20": 1.0}


def test_long_prompts_are_left_out_by_default_and_the_report_says_so() -> None:
    assert "long" not in DEFAULT_TASKS
    assert "long prompts" in describe_workload(DEFAULT_TASKS)["left_out"]["long"]
    assert describe_workload(["chat", "long"]) == {"tasks": ["chat", "long"]}


def test_both_decode_the_same_prompts_and_no_prompt_comes_twice(verifiers: dict[str, FakeVerifier]) -> None:
    report()
    drafted, plain = (verifiers[name].batches for name in ("miniature-dspine", "none"))
    assert drafted == plain
    counts = Counter(tuple(prompt) for _, prompts in plain for prompt in prompts)
    assert set(counts.values()) == {1}
    assert sum(counts.values()) == 2 * SETTINGS.num_prompts(num_tasks=2)


def test_texts_that_differ_are_counted(
    verifiers: dict[str, FakeVerifier], monkeypatch: pytest.MonkeyPatch
) -> None:
    honest = FakeVerifier.run

    def lying(
        self: FakeVerifier, prompts: Any, settings: AcceptanceSettings
    ) -> tuple[list[PromptRun], float]:
        runs, seconds = honest(self, prompts, settings)
        if self.is_drafted:
            runs[0] = replace(runs[0], token_ids=(1, 2, 4))
        return runs, seconds

    monkeypatch.setattr(FakeVerifier, "run", lying)
    assert [row["greedy_mismatches"] for row in report()] == [2, 4], "one a turn"


@pytest.mark.parametrize(
    ("concurrency", "num_tasks", "count"), [(1, 6, 4), (4, 6, 4), (8, 6, 6), (32, 6, 22), (1, 1, 20)]
)
def test_a_turn_has_twenty_prompts_and_at_least_four_for_each_request_at_a_time(
    concurrency: int, num_tasks: int, count: int
) -> None:
    assert SETTINGS.prompts_a_task(concurrency, num_tasks) == count

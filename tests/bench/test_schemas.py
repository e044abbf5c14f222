from __future__ import annotations

import pytest

from dspine_cluster.bench.schemas import Answer, fits, run_schemas, summarise
from dspine_cluster.config import DraftingConfig, EngineConfig, VerifierConfig
from dspine_cluster.types import Usage

SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}


@pytest.mark.parametrize(
    ("text", "is_right"), [('{"a": 1}', True), ('{"a": "1"}', False), ("{}", False), ('{"a": 1', False)]
)
def test_validity_is_the_validator_s(text: str, is_right: bool) -> None:
    assert fits(text, SCHEMA) == is_right


def test_answers_that_were_cut_count_apart() -> None:
    def answer(num_tokens: int, num_rounds: int, *, is_cut: bool, is_valid: bool) -> Answer:
        usage = Usage(output_tokens=num_tokens, num_rounds=num_rounds)
        return Answer(SCHEMA, "", is_cut, is_valid, usage)

    answers = [
        answer(7, 2, is_cut=False, is_valid=True),
        answer(5, 2, is_cut=False, is_valid=False),
        answer(99, 9, is_cut=True, is_valid=False),
    ]
    report = summarise(answers)
    assert (report["num_schemas"], report["num_valid"], report["num_cut"]) == (3, 1, 1)
    assert report["acceptance_length"] == (6 + 4) / 4
    assert report["invalid"] == [{"schema": SCHEMA, "text": ""}]


def test_sampled_answers_fit_random_schemas_in_few_rounds() -> None:
    config = VerifierConfig(
        engine=EngineConfig(pool_tokens=8192, max_running_requests=6),
        drafting=DraftingConfig(verify="fixed:15", first_deadline_s=30.0, late_factor=50.0),
    )
    done: list[None] = []
    report = run_schemas(
        config,
        count=6,
        temperature=1.0,
        max_tokens=300,
        seed=2,
        concurrency=6,
        done=lambda: done.append(None),
    )
    assert len(done) == 6
    assert report["invalid"] == []
    assert report["num_valid"] == 6 - report["num_cut"] >= 4
    assert report["acceptance_length"] > 1.3

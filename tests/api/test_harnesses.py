"""The miniature as evaluation harnesses and load generators use it, by the requests that they make."""

from __future__ import annotations

import openai


def test_an_evaluation_harness_scores_the_continuations_of_a_prompt(client: openai.OpenAI) -> None:
    prompt = "Once upon a time there"
    made = client.completions.create(
        model="miniature",
        prompt=prompt,
        max_tokens=4,
        temperature=0,
        extra_body={"return_token_ids": True, "ignore_eos": True},
    )
    told = made.choices[0].model_extra or {}
    prompt_ids, greedy = told["prompt_token_ids"], told["token_ids"]
    continuations = [greedy, [*greedy[:-1], (greedy[-1] + 1) % 3000]]
    scored = client.completions.create(
        model="miniature",
        prompt=[[*prompt_ids, *continuation] for continuation in continuations],
        max_tokens=1,
        temperature=0,
        logprobs=1,
        echo=True,
        seed=1234,
    )
    sums, are_greedy = [], []
    for choice in scored.choices:
        assert choice.logprobs is not None
        logprobs = (choice.logprobs.token_logprobs or [])[len(prompt_ids) : -1]
        top = (choice.logprobs.top_logprobs or [])[len(prompt_ids) : -1]
        assert len(logprobs) == len(top) == len(greedy)
        sums.append(sum(logprobs))
        are_greedy.append(all(value == max(best.values()) for value, best in zip(logprobs, top, strict=True)))
    assert are_greedy == [True, False]
    assert sums[0] > sums[1]


def test_a_load_generator_gets_as_many_tokens_as_it_asks_for(client: openai.OpenAI) -> None:
    *chunks, last = client.completions.create(
        model="miniature",
        prompt="What is 6 times 7?",
        max_tokens=40,
        temperature=0,
        stream=True,
        stream_options={"include_usage": True},
        extra_body={"ignore_eos": True, "repetition_penalty": 1.0},
    )
    assert all(len(chunk.choices) == 1 for chunk in chunks)
    assert chunks[-1].choices[0].finish_reason == "length"
    assert last.choices == []
    assert last.usage is not None
    assert last.usage.completion_tokens == 40

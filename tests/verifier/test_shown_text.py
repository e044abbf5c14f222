"""What of a request's end and of its special tokens shows in its text."""

from __future__ import annotations

from dataclasses import replace
from string import ascii_lowercase

import pytest

from dspine_cluster.models.target import TargetModel
from dspine_cluster.token_bytes import TokenBytes
from dspine_cluster.types import FinishReason, GenerateRequest, SamplingParams
from tests.verifier.harness import (
    LoopHarness,
    Result,
    ScriptedChannel,
    byte_tokenizer,
    hybrid_config,
    make_request,
    random_prompts,
    random_target,
)

TOKEN_BYTES = TokenBytes(byte_tokenizer())
PROMPT = random_prompts(1, seed=5)[0]
LETTERS = SamplingParams(seed=7, logit_bias=tuple((ord(letter), 50.0) for letter in ascii_lowercase))
"""Writes what can be read."""


@pytest.fixture(scope="module")
def target() -> TargetModel:
    return random_target(hybrid_config(), seed=3)


@pytest.fixture(scope="module")
def tokens(target: TargetModel) -> list[int]:
    """What the prompt is followed by."""
    return run(target, make_request(PROMPT, sampling=LETTERS, ignore_eos=True)).token_ids


def run(target: TargetModel, request: GenerateRequest, tokens: list[int] | None = None) -> Result:
    """With `tokens` proposed, so that ends fall inside blocks."""
    harness = LoopHarness(target)
    if tokens is not None:
        channel = ScriptedChannel(lambda item: tokens[item.output_index : item.output_index + 15])
        harness.loop.drafters.connect("scripted", channel)
    [result] = harness.generate([request])
    return result


def text_of(tokens: list[int]) -> str:
    data = (TOKEN_BYTES.of(token, skip_special_tokens=False) for token in tokens)
    return b"".join(data).decode(errors="replace")


@pytest.mark.parametrize("has_stop_string", [False, True])
@pytest.mark.parametrize("shows_stop", [False, True])
def test_an_end_token_shows_where_that_is_asked_for(
    target: TargetModel, tokens: list[int], shows_stop: bool, has_stop_string: bool
) -> None:
    end = next(token for token in tokens[8:] if token not in tokens[:8])
    kept = tokens[: tokens.index(end) + 1]
    stop_strings = ("no such text",) if has_stop_string else ()
    request = make_request(
        PROMPT,
        sampling=LETTERS,
        stop_token_ids=(end,),
        stop_strings=stop_strings,
        shows_stop=shows_stop,
        ignore_eos=True,
    )
    result = run(target, replace(request, skip_special_tokens=False), tokens)
    assert result.token_ids == kept
    assert result.finish_reason is FinishReason.STOP
    assert result.text == text_of(kept if shows_stop else kept[:-1])


def test_a_stop_string_shows_where_that_is_asked_for(target: TargetModel, tokens: list[int]) -> None:
    whole = run(target, make_request(PROMPT, sampling=LETTERS, ignore_eos=True)).text
    stop = whole[12:14]
    end = whole.index(stop)
    for shows_stop in (False, True):
        request = make_request(
            PROMPT, sampling=LETTERS, stop_strings=(stop,), shows_stop=shows_stop, ignore_eos=True
        )
        result = run(target, request, tokens)
        assert result.text == whole[: end + len(stop) * shows_stop]
        assert result.finish_reason is FinishReason.STOP


def test_special_tokens_show_where_that_is_asked_for(target: TargetModel) -> None:
    special = 280
    bias = ((special, 100.0),)
    request = make_request(PROMPT, max_tokens=3, ignore_eos=True)
    request = replace(request, sampling=SamplingParams(temperature=0.0, logit_bias=bias))
    assert run(target, request).text == ""
    assert run(target, replace(request, skip_special_tokens=False)).text == "<|280|>" * 3

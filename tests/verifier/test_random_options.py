"""Random options of requests: drafts change nothing, what is left out stays out, and streams are parts of the whole."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dspine_cluster.api.answering.token_events import TokenSplitter
from dspine_cluster.api.answering.token_texts import TokenTexts
from dspine_cluster.core.verify_length import FixedVerifyLength
from dspine_cluster.models.target import TargetModel
from dspine_cluster.token_bytes import TokenBytes
from dspine_cluster.types import FinishReason, GenerateRequest, SamplingParams
from tests.drafts import DraftItem
from tests.verifier.harness import (
    EOS,
    MASK,
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
LETTERS = "abcé "
IDS = tuple(LETTERS.encode())
SPECIAL = (256, 260, EOS)
BIAS = tuple((token, 40.0) for token in (*IDS, 256))
"""So that few tokens come, often the same ones."""

words = st.lists(st.lists(st.sampled_from(IDS), min_size=1, max_size=3).map(tuple), max_size=4).map(tuple)
samplings = st.builds(
    SamplingParams,
    temperature=st.sampled_from([0.0, 0.7, 1.0]),
    seed=st.integers(-(2**63), 2**63 - 1),
    top_k=st.sampled_from([0, 0, 1, 4]),
    frequency_penalty=st.sampled_from([0.0, 2.0]),
    repetition_penalty=st.sampled_from([1.0, 1.4]),
    logit_bias=st.just(BIAS),
    allowed_token_ids=st.none()
    | st.sets(st.sampled_from([*IDS, *SPECIAL]), min_size=2).map(sorted).map(tuple),
    bad_words=words,
)
prompts = st.sampled_from(random_prompts(8, seed=5))


@st.composite
def requests(draw: st.DrawFn) -> GenerateRequest:
    request = make_request(
        draw(prompts),
        max_tokens=draw(st.integers(1, 40)),
        sampling=draw(samplings),
        min_tokens=draw(st.sampled_from([0, 0, 1, 6])),
        stop_strings=tuple(draw(st.lists(st.text(LETTERS, min_size=1, max_size=3), max_size=3))),
        stop_token_ids=tuple(draw(st.lists(st.sampled_from([*IDS, 256]), max_size=1))),
        ignore_eos=draw(st.booleans()),
        shows_stop=draw(st.booleans()),
    )
    stop = replace(request.stop, min_tokens=min(request.stop.min_tokens, request.stop.max_tokens))
    return replace(request, stop=stop, skip_special_tokens=draw(st.booleans()), num_top_logprobs=1)


@pytest.fixture(scope="module")
def target() -> TargetModel:
    return random_target(hybrid_config(), seed=3)


def pieces(request: GenerateRequest, result: Result) -> list[str]:
    """The texts of its events where each token has one."""
    splitter = TokenSplitter(TokenTexts(TOKEN_BYTES, skip_special_tokens=request.skip_special_tokens))
    parts = [part for output in result.outputs for part in splitter.split(output)]
    assert [token for part in parts for token in part.token_ids] == result.token_ids
    return [part.text for part in parts]


@settings(max_examples=8)
@given(st.lists(requests(), min_size=1, max_size=6), st.integers(0, 1000))
def test_drafts_change_nothing_whatever_is_asked_for(
    target: TargetModel, asked: list[GenerateRequest], seed: int
) -> None:
    plain = LoopHarness(target, policy=FixedVerifyLength(0)).generate(asked)
    chance = random.Random(seed)

    def propose(item: DraftItem) -> list[int]:
        """What comes, and then something else."""
        tokens = plain[item.uid].token_ids[item.output_index :][: chance.randint(0, 15)]
        return [*tokens, *(chance.choice([*IDS, *SPECIAL, MASK]) for _ in range(15 - len(tokens)))]

    drafted = LoopHarness(target, channel=ScriptedChannel(propose)).generate(asked)
    for request, one, other in zip(asked, drafted, plain, strict=True):
        assert (one.token_ids, one.text, one.finish_reason) == (
            other.token_ids,
            other.text,
            other.finish_reason,
        )
        for result in (one, other):
            assert "".join(pieces(request, result)) == result.text
        chosen = [
            [value for output in result.outputs if output.logprobs for value in output.logprobs.chosen]
            for result in (one, other)
        ]
        assert len(chosen[0]) == len(one.token_ids)
        assert chosen[0] == pytest.approx(chosen[1], abs=1e-4)


@settings(max_examples=8)
@given(st.lists(requests(), min_size=1, max_size=6))
def test_what_is_left_out_stays_out_and_texts_are_those_of_the_tokens(
    target: TargetModel, asked: list[GenerateRequest]
) -> None:
    for request, result in zip(asked, LoopHarness(target).generate(asked), strict=True):
        allowed, stop = request.sampling.allowed_token_ids, request.stop
        assert MASK not in result.token_ids
        assert allowed is None or set(result.token_ids) <= set(allowed)
        assert stop.min_tokens <= len(result.token_ids) <= stop.max_tokens
        tokens = result.token_ids
        ends = {*stop.stop_token_ids, *(() if stop.ignore_eos else (EOS,))}
        if result.finish_reason is FinishReason.STOP and tokens[-1] in ends and not stop.shows_stop:
            tokens = tokens[:-1]
        data = (TOKEN_BYTES.of(token, skip_special_tokens=request.skip_special_tokens) for token in tokens)
        whole = b"".join(data).decode(errors="replace")
        assert whole.startswith(result.text)
        if not stop.stop_strings:
            assert result.text == whole
        elif result.text != whole:
            rest = whole.removeprefix(result.text)
            assert rest.startswith(stop.stop_strings) or (
                stop.shows_stop and result.text.endswith(stop.stop_strings)
            )

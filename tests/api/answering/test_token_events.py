from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from dspine_cluster.api.answering.token_events import TokenSplitter
from dspine_cluster.api.answering.token_texts import TokenTexts
from dspine_cluster.types import FinishReason, Logprobs, RoundOutput, Usage
from tests.api.conftest import Api
from tests.api.fakes import NAMES, byte_tokenizer

TEXTS = st.text("aé€😀 ", min_size=1, max_size=12)


def rounds_of(text: str, lengths: Sequence[int]) -> list[RoundOutput]:
    """Rounds that give `text` with one character held back, as long as there is one, until the last round."""
    token_ids = byte_tokenizer().encode(text)
    rounds, start, given = [], 0, 0
    usage = Usage(prompt_tokens=7)
    for number, length in enumerate([*lengths, len(token_ids)]):
        part = tuple(token_ids[start : start + length])
        start += len(part)
        certain = b"".join(NAMES.data(token_id) for token_id in token_ids[:start]).decode(errors="ignore")
        is_last = start == len(token_ids)
        end = len(text) if is_last else max(len(certain) - 1, given)
        usage = replace(usage, output_tokens=start, num_rounds=number + 1)
        logprobs = Logprobs(tuple(-float(i) for i in part), ((1,),) * len(part), ((-0.5,),) * len(part))
        rounds.append(
            RoundOutput(
                part,
                text[given:end],
                max(len(part) - 1, 0),
                FinishReason.STOP if is_last else None,
                usage,
                logprobs,
            )
        )
        given = end
        if is_last:
            return rounds
    raise AssertionError


@given(TEXTS, st.lists(st.integers(0, 5), max_size=8))
def test_parts_have_a_token_each_and_join_to_the_rounds(text: str, lengths: list[int]) -> None:
    splitter = TokenSplitter(TokenTexts(NAMES.token_bytes))
    given_text = ""
    for output in rounds_of(text, lengths):
        parts = list(splitter.split(output))
        assert all(len(part.token_ids) == 1 for part in parts) or parts == [output]
        assert tuple(token_id for part in parts for token_id in part.token_ids) == output.token_ids
        assert "".join(part.text for part in parts) == output.text
        assert sum(part.accepted_tokens for part in parts) == output.accepted_tokens
        chosen = tuple(logprob for part in parts if part.logprobs for logprob in part.logprobs.chosen)
        assert output.logprobs is not None
        assert chosen == output.logprobs.chosen
        last = output.usage.output_tokens
        assert [part.usage.output_tokens for part in parts] == list(range(last - len(parts) + 1, last + 1))
        assert parts[-1].usage == output.usage
        assert [part.finish_reason for part in parts[:-1]] == [None] * (len(parts) - 1)
        assert parts[-1].finish_reason == output.finish_reason
        given_text += output.text
    assert given_text == text


def test_each_token_comes_with_its_own_text() -> None:
    token_ids = tuple(byte_tokenizer().encode("aéb"))
    parts = TokenSplitter(TokenTexts(NAMES.token_bytes)).split(RoundOutput(token_ids, "aéb"))
    assert [part.text for part in parts] == ["a", "", "é", "b"]


def test_a_stream_has_an_event_for_each_token_and_the_same_text_and_statistics(api: Api) -> None:
    told = {}
    for each in (False, True):
        stream = api.openai.completions.create(
            model="fake",
            prompt="x",
            max_tokens=10,
            stream=True,
            extra_body={
                "return_token_ids": True,
                "dspine": {"stream_tokens": each, "include_stats": True},
            },
        )
        choices = [chunk.choices[0].model_dump() for chunk in stream]
        assert len(choices) == (10 if each else 4)
        assert not each or all(len(choice["token_ids"]) == 1 for choice in choices)
        text = "".join(choice["text"] for choice in choices)
        ids = [token_id for choice in choices for token_id in choice["token_ids"]]
        told[each] = (text, ids, choices[-1]["dspine"], choices[-1]["finish_reason"])
    assert told[False] == told[True]


def test_a_chat_streams_tokens_too(api: Api) -> None:
    stream = api.openai.chat.completions.create(
        model="fake",
        messages=[{"role": "user", "content": "x"}],
        max_tokens=10,
        stream=True,
        extra_body={"dspine": {"stream_tokens": True}},
    )
    assert len(list(stream)) == 1 + 10  # the role comes first

from __future__ import annotations

from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from dspine_cluster.api.answering.answer_events import Content
from dspine_cluster.api.responses_api.content_logprobs import ContentLogprobs
from dspine_cluster.types import Logprobs, RoundOutput
from tests.api.fakes import NAMES, byte_tokenizer

END = 257


def pushed(text: str | Sequence[int]) -> ContentLogprobs:
    """After a round whose tokens are the bytes of `text`, less likely one after the other."""
    token_ids = tuple(byte_tokenizer().encode(text)) if isinstance(text, str) else tuple(text)
    logprobs = ContentLogprobs(NAMES)
    values = tuple(-float(number) for number in range(len(token_ids)))
    nothing = ((),) * len(token_ids)
    logprobs.push(RoundOutput(token_ids, "", logprobs=Logprobs(values, nothing, nothing)))
    return logprobs


def taken(logprobs: ContentLogprobs, text: str, end: int) -> str:
    """The text of the tokens whose log-probabilities are told with a piece of content."""
    entries = logprobs.take(Content(text, end))
    return bytes(byte for entry in entries for byte in entry.bytes).decode(errors="replace")


def test_tokens_of_reasoning_and_calls_are_left_out() -> None:
    logprobs = pushed("<think>a</think>b<call>c")
    assert [taken(logprobs, "b", 17), taken(logprobs, "c", 24)] == ["b", "c"]


@given(st.text(st.sampled_from("aé漢🙂"), max_size=8), st.data())
def test_every_token_comes_once_with_the_piece_that_its_character_is_in(
    text: str, data: st.DataObject
) -> None:
    place = data.draw(st.integers(0, len(text)))
    logprobs = pushed(text)
    assert taken(logprobs, text[:place], place) == text[:place]
    assert taken(logprobs, text[place:], len(text)) == text[place:]


def test_a_token_without_text_is_left_out() -> None:
    token_ids = [*byte_tokenizer().encode("ab"), END]
    assert taken(pushed(token_ids), "ab", 2) == "ab"
    kept = ContentLogprobs(NAMES, skip_special_tokens=False)
    kept.push(RoundOutput((END,), "", logprobs=Logprobs((-1.0,), ((),), ((),))))
    assert taken(kept, "<|im_end|>", 10) == "<|im_end|>"


def test_a_character_that_is_cut_off_keeps_its_tokens() -> None:
    token_ids = byte_tokenizer().encode("a🙂")[:-1]
    logprobs = pushed(token_ids)
    entries = logprobs.take(Content("a\ufffd", 2))
    assert [entry.logprob for entry in entries] == [0.0, -1.0, -2.0, -3.0]


def test_text_that_comes_later_than_its_tokens_gets_them_then() -> None:
    logprobs = pushed("stop")
    assert [taken(logprobs, "st", 2), taken(logprobs, "op", 4)] == ["st", "op"]

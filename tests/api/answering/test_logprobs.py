from __future__ import annotations

from dspine_cluster.api.answering.logprobs import TextLogprobsWriter, chat_logprobs
from dspine_cluster.types import Logprobs, RoundOutput
from tests.api.fakes import NAMES, byte_tokenizer

E_ACUTE = tuple(byte_tokenizer().encode("é"))
A, B, C = byte_tokenizer().encode("ABC")


def told(token_ids: tuple[int, ...], prompt: Logprobs | None = None) -> RoundOutput:
    """A round whose tokens are half as likely as B."""
    return RoundOutput(token_ids, "", logprobs=logprobs_of(len(token_ids)), prompt_logprobs=prompt)


def logprobs_of(num_tokens: int) -> Logprobs:
    return Logprobs((-2.0,) * num_tokens, ((B, C),) * num_tokens, ((-1.0, -3.0),) * num_tokens)


def test_a_chat_has_one_entry_a_token_with_bytes() -> None:
    content = chat_logprobs([told((A,)), told(E_ACUTE)], NAMES).content
    assert [entry.token for entry in content] == ["A", "\ufffd", "\ufffd"]
    assert bytes(byte for entry in content for byte in entry.bytes).decode() == "Aé"
    assert [(top.token, top.logprob) for top in content[0].top_logprobs] == [("B", -1.0), ("C", -3.0)]


def test_texts_tell_of_the_chosen_token_beside_the_likeliest() -> None:
    part = TextLogprobsWriter(NAMES).write([told((A, C))])
    assert part.tokens == ["A", "C"]
    assert part.token_logprobs == [-2.0, -2.0]
    assert part.top_logprobs == [{"B": -1.0, "C": -3.0, "A": -2.0}, {"B": -1.0, "C": -2.0}]


def test_offsets_count_characters_over_all_parts() -> None:
    writer = TextLogprobsWriter(NAMES)
    parts = [writer.write([told((A, E_ACUTE[0]))]), writer.write([told((E_ACUTE[1], B)), told((257,))])]
    assert [part.text_offset for part in parts] == [[0, 1], [1, 2, 3]]


def test_an_echoed_prompt_comes_first_and_nothing_is_before_its_first_token() -> None:
    writer = TextLogprobsWriter(NAMES, (A, B, 257), "AB<|im_end|>")
    part = writer.write([told((C,), logprobs_of(2))])
    assert part.tokens == ["A", "B", "<|im_end|>", "C"]
    assert part.token_logprobs == [None, -2.0, -2.0, -2.0]
    assert part.top_logprobs[0] is None
    assert part.text_offset == [0, 1, 2, len("AB<|im_end|>")]

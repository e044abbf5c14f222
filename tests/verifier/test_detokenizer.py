from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers

from dspine_cluster.token_bytes import TokenBytes
from dspine_cluster.verifier.detokenizer import Detokenizer


def _byte_level_tokenizer() -> Tokenizer:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=330,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        special_tokens=["<|im_start|>", "<|im_end|>"],
        show_progress=False,
    )
    tokenizer.train_from_iterator(["the stop is here, the end. 🦙 café naïve 日本語 " * 20], trainer)
    tokenizer.add_tokens([AddedToken("<tool call>", special=False), AddedToken("<thinké>", special=False)])
    return tokenizer


TOKENIZER = _byte_level_tokenizer()
TOKEN_BYTES = TokenBytes(TOKENIZER)

any_tokens = st.lists(st.integers(0, TOKENIZER.get_vocab_size() + 1), max_size=40)
texts = st.text(st.sampled_from("abABtheENDstop .,🦙é日\n"), max_size=25).map(
    lambda text: TOKENIZER.encode(text).ids
)
tokens_strategy = any_tokens | texts
stops_strategy = st.lists(
    st.sampled_from(["a", "ab", "ba", "stop", "the", "he", "END", "🦙", "é日", "\ufffd", " ", "aba"]),
    max_size=3,
    unique=True,
)


def _split(tokens: list[int], cuts: list[int]) -> list[list[int]]:
    borders = sorted({0, len(tokens), *(cut for cut in cuts if cut < len(tokens))})
    return [tokens[start:end] for start, end in pairwise(borders)]


def _run(detokenizer: Detokenizer, pieces: list[list[int]]) -> tuple[str, int, bool]:
    text, num_kept = "", 0
    for piece in pieces:
        pushed = detokenizer.push(piece)
        text += pushed.text
        num_kept += pushed.num_tokens_kept
        if pushed.stopped:
            return text, num_kept, True
    return text + detokenizer.flush(), num_kept, False


def _cut_at_first_stop(text: str, stops: list[str], shows_stop: bool) -> str:
    """Read character by character until a stop string is complete; cut the longest that is, or what follows it."""
    for end in range(len(text) + 1):
        complete = [stop for stop in stops if text[:end].endswith(stop)]
        if complete:
            return text[: end if shows_stop else end - max(map(len, complete))]
    return text


@given(tokens_strategy, st.lists(st.integers(1, 40)), stops_strategy, st.booleans(), st.booleans())
def test_any_split_gives_the_decoding_of_the_whole_cut_at_the_first_stop(
    tokens: list[int], cuts: list[int], stops: list[str], skip_special_tokens: bool, shows_stop: bool
) -> None:
    detokenizer = Detokenizer(
        TOKEN_BYTES, tuple(stops), skip_special_tokens=skip_special_tokens, shows_stop=shows_stop
    )
    text, _, _ = _run(detokenizer, _split(tokens, cuts))
    whole = TOKENIZER.decode(tokens, skip_special_tokens=skip_special_tokens)
    assert text == _cut_at_first_stop(whole, stops, shows_stop)


@given(tokens_strategy, st.lists(st.integers(1, 40)), stops_strategy)
def test_the_tokens_kept_end_with_the_one_that_completes_the_stop(
    tokens: list[int], cuts: list[int], stops: list[str]
) -> None:
    _, num_kept, stopped = _run(Detokenizer(TOKEN_BYTES, tuple(stops)), _split(tokens, cuts))
    if stopped:
        assert any(stop in TOKENIZER.decode(tokens[:num_kept]) for stop in stops)
        assert _run(Detokenizer(TOKEN_BYTES, tuple(stops)), [tokens[: num_kept - 1]])[1] == num_kept - 1
    else:
        assert num_kept == len(tokens)


@given(tokens_strategy, stops_strategy)
def test_text_once_given_is_never_taken_back(tokens: list[int], stops: list[str]) -> None:
    detokenizer = Detokenizer(TOKEN_BYTES, tuple(stops))
    text = ""
    for index, token in enumerate(tokens):
        pushed = detokenizer.push([token])
        text += pushed.text
        final, _, _ = _run(Detokenizer(TOKEN_BYTES, tuple(stops)), [tokens[: index + 1]])
        assert final.startswith(text)
        if pushed.stopped:
            break


def _ids_of_bytes(data: bytes) -> list[int]:
    by_bytes = {TOKEN_BYTES.of(i, skip_special_tokens=False): i for i in range(TOKENIZER.get_vocab_size())}
    return [by_bytes[bytes([byte])] for byte in data]


def test_a_character_split_over_tokens_is_held_until_it_is_whole() -> None:
    detokenizer = Detokenizer(TOKEN_BYTES)
    given_texts = [detokenizer.push([token]).text for token in _ids_of_bytes("a🦙b".encode())]
    assert given_texts == ["a", "", "", "", "🦙", "b"]


def test_unfinished_utf8_at_the_end_gives_a_replacement_character() -> None:
    detokenizer = Detokenizer(TOKEN_BYTES)
    assert detokenizer.push(_ids_of_bytes("ok🦙".encode()[:-1])).text == "ok"
    assert detokenizer.flush() == "\ufffd"


def test_a_partial_stop_string_is_held_and_released_when_it_goes_on_otherwise() -> None:
    detokenizer = Detokenizer(TOKEN_BYTES, ("END",))
    assert [detokenizer.push(_ids_of_bytes(part)).text for part in (b"xE", b"N", b"C", b"E")] == [
        "x",
        "",
        "ENC",
        "",
    ]
    assert detokenizer.flush() == "E"


def test_tokens_after_a_stop_string_are_dropped() -> None:
    detokenizer = Detokenizer(TOKEN_BYTES, ("END",))
    pushed = detokenizer.push(_ids_of_bytes(b"one END two"))
    assert (pushed.text, pushed.num_tokens_kept, pushed.stopped) == ("one ", 7, True)
    assert detokenizer.flush() == ""


def test_text_of_the_first_min_tokens_does_not_stop() -> None:
    detokenizer = Detokenizer(TOKEN_BYTES, ("ab",), min_tokens=3)
    pushed = detokenizer.push(_ids_of_bytes(b"abababab"))
    assert (pushed.text, pushed.num_tokens_kept, pushed.stopped) == ("abab", 6, True)


def test_special_tokens_give_no_text_unless_asked_for() -> None:
    im_end = TOKENIZER.encode("<|im_end|>").ids
    assert Detokenizer(TOKEN_BYTES).push(im_end).text == ""
    assert Detokenizer(TOKEN_BYTES, skip_special_tokens=False).push(im_end).text == "<|im_end|>"

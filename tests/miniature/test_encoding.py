from collections.abc import Iterator
from itertools import islice
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dspine_cluster.miniature.data import chat, tools
from dspine_cluster.miniature.data.conversation import Conversation, Split, assistant, user
from dspine_cluster.miniature.encoding import TEXT_WEIGHT, Encoded, Encoder, batches, sequences


def counted(encoder: Encoder, conversation: Conversation) -> str:
    """The text whose prediction counts fully."""
    encoded = encoder.document(conversation)
    tokens = [t for t, w in zip(encoded.tokens, encoded.weights, strict=True) if w == 1.0]
    return encoder.tokenizer.decode(tokens, skip_special_tokens=False)


def test_answers_count_fully_and_nothing_else_does(encoder: Encoder) -> None:
    conversation = Conversation((user("Hi"), assistant("Hello there"), user("Bye"), assistant("See you")))
    assert counted(encoder, conversation) == "Hello there<|im_end|><think>\n\n</think>\n\nSee you<|im_end|>"


@pytest.mark.parametrize("seed", range(10))
def test_tool_calls_count_and_results_do_not(encoder: Encoder, seed: int) -> None:
    conversation = tools.conversation(Random(seed), Split.TRAIN)
    text = counted(encoder, conversation)
    assert text.count("<tool_call>") == sum(bool(m.get("tool_calls")) for m in conversation.messages)
    assert "<tool_response>" not in text


def test_plain_text_counts_evenly(encoder: Encoder) -> None:
    assert set(encoder.document("import os\n").weights) == {TEXT_WEIGHT}


@given(st.lists(st.integers(1, 40), min_size=1, max_size=30), st.integers(8, 30))
def test_sequences_are_full_and_begin_with_a_document(lengths: list[int], length: int) -> None:
    def stream() -> Iterator[Encoded]:
        while True:
            for n in lengths:
                yield Encoded([0, *range(1, n)], [1.0] * n)

    for sequence in islice(sequences(stream(), length), 5):
        assert len(sequence.tokens) == len(sequence.weights) == length
        assert sequence.tokens[0] == 0


def test_documents_that_fit_stay_whole(encoder: Encoder) -> None:
    documents = [encoder.document(chat.conversation(Random(i), Split.TRAIN)) for i in range(400)]
    whole = {tuple(d.tokens) for d in documents}
    first = next(sequences(iter(documents), 1024)).tokens
    end = encoder.document("").tokens[-1]
    pieces = [i for i, token in enumerate(first) if token == end]
    begin = 0
    for stop in pieces:
        assert tuple(first[begin : stop + 1]) in whole
        begin = stop + 1
    assert len(pieces) > 5


def test_batches_overlap_by_one_token(encoder: Encoder) -> None:
    stream = (encoder.document(chat.conversation(Random(i), Split.TRAIN)) for i in range(10_000))
    tokens, weights = next(batches(stream, 3, 64))
    assert tokens.shape == weights.shape == (3, 65)

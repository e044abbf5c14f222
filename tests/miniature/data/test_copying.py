from random import Random

from hypothesis import given
from hypothesis import strategies as st

from dspine_cluster.miniature.data import copying
from dspine_cluster.miniature.data.conversation import Split


@given(st.integers(0, 10_000))
def test_answers_hold_only_words_of_the_question(seed: int) -> None:
    question, answer = (m["content"] for m in copying.conversation(Random(seed), Split.TRAIN).messages)
    words = set(answer.replace('"', " ").replace(",", " ").strip("[].").split())
    frame = {"-", "I", "see", "and", *map(str, range(10)), *(f"{i}." for i in range(10))}
    said = {word.strip(",.:?") for word in question.split()}
    assert words - frame <= said | {word.upper() for word in said}


@given(st.integers(0, 10_000))
def test_everything_repeated_was_there_before(seed: int) -> None:
    lines = copying.repetition(Random(seed), ("alpha", "beta", "gamma", "delta")).splitlines()
    assert min(lines.count(line) for line in lines) >= 3

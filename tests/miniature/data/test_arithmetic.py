import re
from random import Random

from hypothesis import given
from hypothesis import strategies as st

from dspine_cluster.miniature.data import arithmetic
from dspine_cluster.miniature.data.conversation import Split

EQUATION = re.compile(r"(?<![\d+*/-] )(?<!\d)(\d+) ([-+*/]) (\d+) = (\d+)")
OPERATIONS = {
    "+": lambda a, b: a + b,
    "-": lambda a, b: a - b,
    "*": lambda a, b: a * b,
    "/": lambda a, b: a / b,
}


@given(st.integers(0, 10_000), st.sampled_from(Split))
def test_the_last_line_is_the_expected_answer(seed: int, split: Split) -> None:
    conversation = arithmetic.conversation(Random(seed), split)
    assert conversation.messages[-1]["content"].splitlines()[-1] == f"Answer: {conversation.expected}"


@given(st.integers(0, 10_000), st.sampled_from(Split))
def test_every_equation_of_the_work_holds(seed: int, split: Split) -> None:
    answer = arithmetic.conversation(Random(seed), split).messages[-1]
    equations = EQUATION.findall(answer["content"] + "\n" + answer.get("reasoning_content", ""))
    assert equations
    for a, operator, b, result in equations:
        assert OPERATIONS[operator](int(a), int(b)) == int(result)


@given(st.integers(0, 10_000))
def test_the_work_arrives_at_the_answer(seed: int) -> None:
    conversation = arithmetic.conversation(Random(seed), Split.TRAIN)
    answer = conversation.messages[-1]
    work = answer.get("reasoning_content") or answer["content"]
    assert conversation.expected in re.findall(r"\d+", work.split("Answer:")[0])

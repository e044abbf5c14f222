import ast
import re
from random import Random
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from dspine_cluster.miniature.data import code
from dspine_cluster.miniature.data.conversation import Split


def source_of(text: str) -> str:
    found = re.fullmatch(r".*```python\n(.*)```", text, re.DOTALL)
    assert found is not None
    return found.group(1)


@given(st.integers(0, 10_000), st.sampled_from(Split))
def test_every_answer_defines_one_function(seed: int, split: Split) -> None:
    for message in code.conversation(Random(seed), split).messages[1::2]:
        tree = ast.parse(source_of(message["content"]))
        assert sum(isinstance(node, ast.FunctionDef) for node in tree.body) == 1


@given(st.integers(0, 10_000))
def test_a_name_given_in_the_question_is_the_name_of_the_function(seed: int) -> None:
    question, answer = code.conversation(Random(seed), Split.TRAIN).messages[:2]
    named = re.search(r"(?:Call it|function named|Define|Implement) (\w+)", question["content"])
    if named:
        assert f"def {named.group(1)}(" in answer["content"]


def test_both_styles_of_a_list_task_compute_the_same() -> None:
    results = set()
    for seed in range(3000):
        question, answer = code.conversation(Random(seed), Split.TRAIN).messages[:2]
        if "the sum of squares of the even numbers in" in question["content"]:
            source = source_of(answer["content"])
            name = source.split("def ")[1].split("(")[0]
            scope: dict[str, Any] = {}
            exec(source, scope)
            results.add(scope[name]([1, 2, 3, 4]))
    assert results == {20}

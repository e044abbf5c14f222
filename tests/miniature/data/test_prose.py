import re
from random import Random

from hypothesis import given
from hypothesis import strategies as st

from dspine_cluster.miniature.data import prose
from dspine_cluster.miniature.data.conversation import Split


@given(st.integers(0, 10_000), st.sampled_from(Split))
def test_stories_tell_of_the_one_asked_for_and_end(seed: int, split: Split) -> None:
    question, answer = (m["content"] for m in prose.conversation(Random(seed), split).messages)
    if " named " not in question:
        return
    name = question.split(" named ")[1].split()[0].strip(".,:")
    assert name in answer
    assert answer.endswith("The end.")


@given(st.integers(0, 10_000), st.sampled_from(Split))
def test_no_slot_is_left_open(seed: int, split: Split) -> None:
    for message in prose.conversation(Random(seed), split).messages:
        assert not set("{}") & set(message["content"])


@given(st.integers(0, 10_000), st.sampled_from(Split))
def test_stories_tell_of_the_goal_asked_for(seed: int, split: Split) -> None:
    question, answer = (m["content"] for m in prose.conversation(Random(seed), split).messages)
    if not answer.endswith("The end."):
        return
    told = re.search(r"(?:wanted|wished|decided) to (.+?)(?:\.|, but) ", answer)
    assert told
    assert told[1] in question or " to " not in question.lower()

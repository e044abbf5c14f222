import re
from random import Random

from hypothesis import given
from hypothesis import strategies as st

from dspine_cluster.miniature.data import chat
from dspine_cluster.miniature.data.conversation import Split

seeds = st.integers(0, 10_000)
splits = st.sampled_from(Split)


@given(seeds, splits)
def test_user_and_assistant_take_turns(seed: int, split: Split) -> None:
    roles = [m["role"] for m in chat.conversation(Random(seed), split).messages]
    assert roles == ["user", "assistant"] * (len(roles) // 2)


@given(seeds, splits)
def test_remembered_names_were_said_before(seed: int, split: Split) -> None:
    messages = chat.conversation(Random(seed), split).messages
    for i, message in enumerate(messages):
        for name in re.findall(r"^(?:Your name is|You are) ([A-Z]\w+)\.$", message["content"]):
            assert any(name in earlier["content"] for earlier in messages[: i - 1])

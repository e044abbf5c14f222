import itertools
import json
from random import Random

from hypothesis import given
from hypothesis import strategies as st

from dspine_cluster.miniature.data import tools
from dspine_cluster.miniature.data.conversation import Split

KINDS = {"string": str, "integer": int}
seeds = st.integers(0, 10_000)
splits = st.sampled_from(Split)


@given(seeds, splits)
def test_every_call_is_of_a_tool_on_offer_with_all_its_parameters(seed: int, split: Split) -> None:
    conversation = tools.conversation(Random(seed), split)
    offered = {tool["function"]["name"]: tool["function"]["parameters"] for tool in conversation.tools}
    for message in conversation.messages:
        for call in message.get("tool_calls", ()):
            parameters = offered[call["function"]["name"]]
            arguments = call["function"]["arguments"]
            assert list(arguments) == parameters["required"]
            for name, value in arguments.items():
                assert isinstance(value, KINDS[parameters["properties"][name]["type"]])


@given(seeds, splits)
def test_the_expected_call_is_the_one_of_the_last_message(seed: int, split: Split) -> None:
    conversation = tools.conversation(Random(seed), split)
    calls = conversation.messages[-1].get("tool_calls")
    assert (calls is None) == (conversation.expected is None)
    if calls:
        assert json.loads(conversation.expected or "") == {
            "name": calls[0]["function"]["name"],
            "arguments": calls[0]["function"]["arguments"],
        }


@given(seeds, splits)
def test_argument_values_can_be_copied_from_what_users_said(seed: int, split: Split) -> None:
    conversation = tools.conversation(Random(seed), split)
    said = " ".join(m["content"] for m in conversation.messages if m["role"] == "user")
    for message in conversation.messages:
        for call in message.get("tool_calls", ()):
            for value in call["function"]["arguments"].values():
                assert str(value) in said


@given(seeds, splits)
def test_results_follow_calls(seed: int, split: Split) -> None:
    messages = tools.conversation(Random(seed), split).messages
    for before, message in itertools.pairwise(messages):
        assert (message["role"] == "tool") == bool(before.get("tool_calls"))

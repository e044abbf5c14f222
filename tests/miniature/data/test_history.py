from __future__ import annotations

from random import Random

from dspine_cluster.miniature.data.conversation import Conversation, Split
from dspine_cluster.miniature.data.history import long_prompt, with_history


def test_the_conversation_that_counts_comes_last_and_its_system_message_first() -> None:
    num_systems = 0
    for seed in range(40):
        conversation = with_history(Random(seed), Split.TRAIN, num_exchanges=3)
        roles = [message["role"] for message in conversation.messages]
        assert roles[-1] == "assistant"
        assert "system" not in roles[1:]
        assert roles.count("user") >= 4
        num_systems += roles[0] == "system"
    assert 0 < num_systems < 40


def test_long_prompts_keep_to_their_limits() -> None:
    def encode(conversation: Conversation) -> list[int]:
        return [len(word) for message in conversation.prompt for word in message["content"].split()]

    lengths = [len(long_prompt(Random(seed), Split.TRAIN, (200, 900), encode)) for seed in range(20)]
    assert all(200 <= length <= 900 for length in lengths)
    assert len(set(lengths)) > 10

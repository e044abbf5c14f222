"""Small talk around what users ask: it teaches the miniature to find the request wherever it stands."""

from __future__ import annotations

from dataclasses import replace
from random import Random

from dspine_cluster.miniature.data.conversation import Conversation, Message

_BEFORE = (
    "Hi, ", "Hello! ", "Hey, ", "Ok, ", "So, ", "Well, ", "Now: ", "Please: ", "Quick question: ", "One more thing: ",
    "Good morning. ", "Good evening! ", "Sorry to bother you. ", "I need help. ", "Can you help me? ",
    "Here is what I need: ", "Listen, ", "If you have a moment: ", "Next: ", "Dear assistant, ", "It is urgent! ",
    "Let me think. ", "I have a question. ", "Right, ", "Another one: ",
)  # fmt: skip
_AFTER = (
    " Thanks.", " Thank you!", " Please.", " Be quick.", " It is urgent.", " Thanks a lot!", " That would help me.",
    " Take your time.", " I need it today.", " Ok?", " Can you do that?", " I am waiting.", " Cheers!",
    " That is all.", " Let me know.",
)  # fmt: skip
BEFORE_SHARE = 0.4
AFTER_SHARE = 0.25


def with_small_talk(rng: Random, conversation: Conversation) -> Conversation:
    """The conversation, some of its user messages with a few words before or after. Answers stay as they are."""
    return replace(conversation, messages=tuple(_varied(rng, message) for message in conversation.messages))


def _varied(rng: Random, message: Message) -> Message:
    if message["role"] != "user":
        return message
    before = rng.choice(_BEFORE) if rng.random() < BEFORE_SHARE else ""
    after = rng.choice(_AFTER) if rng.random() < AFTER_SHARE else ""
    return {**message, "content": before + message["content"] + after}

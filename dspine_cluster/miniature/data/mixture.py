"""The training mix: which share of the documents each family has, and the endless stream of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from random import Random

from dspine_cluster.miniature.data import arithmetic, chat, code, copying, library, prose, tools
from dspine_cluster.miniature.data.conversation import Conversation, Split
from dspine_cluster.miniature.data.variation import with_small_talk

TASKS: dict[str, Callable[[Random, Split], Conversation]] = {
    "arithmetic": arithmetic.conversation,
    "code": code.conversation,
    "tools": tools.conversation,
    "prose": prose.conversation,
    "chat": chat.conversation,
}
"""The task families with held-out prompts."""

SHARES: dict[str, float] = {
    "arithmetic": 0.28,
    "code": 0.13,
    "tools": 0.20,
    "prose": 0.10,
    "chat": 0.10,
    "copying": 0.14,
    "repetition": 0.02,
    "source": 0.02,
    "topic": 0.01,
}
"""Share of documents, not of tokens: excerpts and tool conversations are several times longer than the rest."""


def documents(seed: int, split: Split) -> Iterator[Conversation | str]:
    """Conversations and plain text excerpts, endless; the same seed gives the same documents."""
    rng = Random(seed)
    files, texts = library.source_files(split), library.topics(split)
    words = library.vocabulary(split)
    kinds, shares = list(SHARES), list(SHARES.values())
    while True:
        kind = rng.choices(kinds, shares)[0]
        if kind == "source":
            yield library.source_excerpt(rng, files)
        elif kind == "topic":
            yield library.topic_excerpt(rng, texts)
        elif kind == "copying":
            yield copying.conversation(rng, split)
        elif kind == "repetition":
            yield copying.repetition(rng, words)
        else:
            made = TASKS[kind](rng, split)
            yield with_small_talk(rng, made) if split is Split.TRAIN else made

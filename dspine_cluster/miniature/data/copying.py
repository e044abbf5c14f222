"""Short copying tasks, for training only: they teach the miniature to carry names and words over exactly."""

from __future__ import annotations

import json
from collections.abc import Sequence
from random import Random

from dspine_cluster.miniature.data.conversation import Conversation, Split, assistant, phrasing, user
from dspine_cluster.miniature.data.words import ANIMALS, CITIES, ITEMS, NAMES, invented_name, listed

NUMBERS = tuple(str(n) for n in range(1000))

_ASK = (
    ("Repeat: {s}", "{s}"),
    ("Say this again: {s}", "{s}"),
    ("Copy the following words: {s}", "{s}"),
    ("Echo: {s}", "{s}"),
    ("Type exactly this: {s}", "{s}"),
    ("Read back: {s}", "{s}"),
    ("Please say {s}.", "{s}"),
    ("Write {s} as a list.", "{dashes}"),
    ("Reverse the order: {s}", "{back}"),
    ("Number these: {s}", "{numbers}"),
    ("Give me JSON for {s}.", "{json}"),
    ("What is the first of these: {s}?", "{first}"),
    ("What is the last of these: {s}?", "{last}"),
    ("How many words are in: {s}?", "{count}"),
    ("Which word comes after {one}: {s}?", "{two}"),
    ("Sort by the alphabet: {s}", "{sorted}"),
    ("Put these into one sentence: {s}", "I see {listed}."),
    ("In capitals: {s}", "{upper}"),
    ("Bullet points please: {s}", "{dashes}"),
    ("{s}. Now you say it.", "{s}"),
    ("Give {s} numbers.", "{numbers}"),
    ("I will say some words: {s}. Say them too.", "{s}"),
    ("Here are some words: {s}. What comes after {one}?", "{two}"),
    ("Write this down: {s}", "{s}"),
    ("{s}: make a list with numbers.", "{numbers}"),
    ("What did I say? {s}", "{s}"),
    ("In {s}, what follows {one}?", "{two}"),
    ("{s}. What is the first word?", "{first}"),
    ("Say them from last to first: {s}", "{back}"),
    ("{s}. Write this as JSON.", "{json}"),
    ("{s}. Name the last one.", "{last}"),
    ("Count the words: {s}", "{count}"),
    ("A list of {s}, please.", "{dashes}"),
    ("Please write {s} again.", "{s}"),
    ("{s}. Turn the order around.", "{back}"),
    ("Only the first, please: {s}", "{first}"),
    ("Which comes last in {s}?", "{last}"),
    ("Say {s} and nothing else.", "{s}"),
    ("How many are there? {s}", "{count}"),
    ("The words are {s}. Repeat them.", "{s}"),
    ("Make a JSON list: {s}", "{json}"),
    ("{one} is one of {s}. Which is next?", "{two}"),
    ("{s}. Sort them from A to Z.", "{sorted}"),
    ("Make it one sentence: {s}", "I see {listed}."),
    ("Make all letters big: {s}", "{upper}"),
    ("Keep the order and say {s}.", "{s}"),
    ("{s}. Copy that.", "{s}"),
    ("Put a number before each of {s}.", "{numbers}"),
    ("One line for each, with a dash: {s}", "{dashes}"),
    ("Find {one} in {s} and say the next word.", "{two}"),
    ("I want {s} in big letters.", "{upper}"),
    ("Start with the last: {s}", "{back}"),
)


def conversation(rng: Random, split: Split) -> Conversation:
    """Words to repeat, reorder, pick from or wrap."""
    pool = rng.choice((NAMES, ITEMS, CITIES, ANIMALS, NUMBERS, None, None, None))
    count = rng.randint(2, 9)
    words = [invented_name(rng) for _ in range(count)] if pool is None else rng.sample(list(pool), k=count)
    at = rng.randrange(count - 1)
    question, answer = phrasing(rng, _ASK, split)
    text = ", ".join(words)
    slots = {
        "s": text,
        "dashes": "\n".join(f"- {word}" for word in words),
        "numbers": "\n".join(f"{i}. {word}" for i, word in enumerate(words, start=1)),
        "back": ", ".join(reversed(words)),
        "json": json.dumps(words),
        "first": words[0],
        "last": words[-1],
        "count": str(count),
        "one": words[at],
        "two": words[at + 1],
        "sorted": ", ".join(sorted(words)),
        "listed": listed(words),
        "upper": text.upper(),
    }
    return Conversation((user(question.format(**slots)), assistant(answer.format(**slots))))


def repetition(rng: Random, words: Sequence[str]) -> str:
    """Plain text of random words that can only be continued by looking back: a line again and again, or pairs again."""
    count = rng.randint(3, 12)
    drawn = [rng.choice(words) if rng.random() < 0.7 else invented_name(rng) for _ in range(count)]
    times = rng.randint(3, 5)
    if rng.random() < 0.5:
        return (rng.choice((" ", ", ")).join(drawn) + "\n") * times
    pairs = [f"{word}: {rng.choice((rng.choice(words), str(rng.randint(0, 999))))}\n" for word in drawn]
    return "".join("".join(rng.sample(pairs, k=count)) for _ in range(times))

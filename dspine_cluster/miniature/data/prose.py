"""Short stories that end, definitions and explanations."""

from __future__ import annotations

from random import Random

from dspine_cluster.miniature.data.conversation import Conversation, Split, assistant, phrasing, user
from dspine_cluster.miniature.data.facts import DEFINITIONS, EXPLANATIONS
from dspine_cluster.miniature.data.words import ANIMALS, COLOURS, article, pronoun, two_names

_PLACES = ("in a small village", "near a quiet river", "at the edge of a forest", "in an old town by the sea",
           "on a green hill", "in a busy city", "beside a blue lake", "high in the mountains")  # fmt: skip
_WISHES = (
    ("learn to swim", "the water was cold and deep", "practised a little every day", "could swim across the lake"),
    ("find the lost key", "it was nowhere to be seen", "searched under every stone", "held the key in the sun"),
    ("build a boat", "there was not enough wood", "collected old planks on the beach", "sailed away at sunrise"),
    ("bake a cake", "the oven was broken", "asked the baker for help", "shared a warm cake with everyone"),
    ("see the stars", "the sky was full of clouds", "waited patiently through the night",
     "saw a thousand stars above the roof"),
    ("win the race", "everyone else was faster", "trained in the rain and in the wind", "crossed the line first"),
    ("plant a garden", "the ground was dry and hard", "carried water from the well", "had flowers in every corner"),
    ("make a friend", "nobody wanted to talk", "smiled and said hello first", "was not alone any more"),
    ("climb the tower", "the stairs were steep", "took one step after another", "looked out over the whole land"),
    ("write a song", "no words came to mind", "listened to the birds in the morning", "sang for the whole market"),
    ("catch a fish", "the fish were too quick", "sat still for a long time", "caught one and let it go again"),
    ("cross the river", "the bridge was gone", "found a row of flat stones", "reached the other side with dry feet"),
)  # fmt: skip
_TRAITS = (
    "brave",
    "shy",
    "curious",
    "clever",
    "lazy",
    "kind",
    "tiny",
    "old",
    "young",
    "quiet",
    "proud",
    "cheerful",
)
_MORALS = (
    "Patience helps more than force.",
    "Good things take time.",
    "A friend makes every road shorter.",
    "Those who try will find a way.",
    "It is never too late to begin.",
    "Small steps lead far.",
)
_ASK_STORY = (
    "Write a short story about {who} who wants to {w}.",
    "Tell me a story about {who}.",
    "Please tell a short tale: {who} wants to {w}.",
    "I would like a bedtime story with {who}.",
    "Make up a little story about {who} trying to {w}.",
    "Can you write a story in which {who} tries to {w}?",
    "A story about {who}, please.",
    "Story time! It should be about {who} who hopes to {w}.",
    "Write a few sentences about {who} and the wish to {w}.",
    "Invent a story with {who} for my child.",
)
_OPENINGS = (
    "Once upon a time {place} there lived {who}.",
    "Long ago, {place}, there was {who}.",
    "{place_c} lived {who}.",
    "There once was {who} who lived {place}.",
)
_WANTED = (
    "{n} wanted to {w}, but {problem}.",
    "More than anything {n} wished to {w}. But {problem}.",
    "One day {n} decided to {w}. Sadly, {problem}.",
)
_HELPED = (
    '{m} the {animal2} said: "Do not give up, {n}!"',
    'Then {m}, {article2}, came by and asked: "{n}, may I help you?"',
    "{m} the {animal2} laughed at first, but then stayed to help.",
)
_TRIED = ("So {p} {effort}.", "From then on {p} {effort}.", "{n} {effort}.")
_ENDED = ("In the end {n} {success}.", "Finally {n} {success}.", "One week later {n} {success}.")


def _story(rng: Random, split: Split) -> Conversation:
    n, m = two_names(rng)
    animal, animal2 = rng.sample(ANIMALS, k=2)
    trait, place = rng.choice(_TRAITS), rng.choice(_PLACES)
    colour = rng.choice(("", "", f"{rng.choice(COLOURS)} "))
    who = f"{article(f'{trait} {colour}{animal}')} named {n}"
    wish, problem, effort, success = rng.choice(_WISHES)
    slots = {
        "n": n, "m": m, "w": wish, "who": who, "place": place, "place_c": place[0].upper() + place[1:],
        "problem": problem, "effort": effort, "success": success, "animal2": animal2,
        "article2": article(animal2), "p": pronoun(n),
    }  # fmt: skip
    parts = [rng.choice(_OPENINGS), rng.choice(_WANTED)]
    if rng.random() < 0.6:
        parts.append(rng.choice(_HELPED))
    parts += [rng.choice(_TRIED), rng.choice(_ENDED)]
    if rng.random() < 0.5:
        parts.append(rng.choice(_MORALS))
    text = " ".join(part.format(**slots) for part in parts) + " The end."
    return Conversation((user(phrasing(rng, _ASK_STORY, split).format(**slots)), assistant(text)))


_ASK_DEFINITION = (
    "What is {t}?",
    "Define {t}.",
    "Can you explain what {t} is?",
    "Tell me about {t}.",
    "What do people mean by {t}?",
    "Please describe {t} in a few words.",
    "Give me a short definition of {t}.",
    "Do you know what {t} is?",
    "I do not know what {t} is. Can you help?",
    "Explain {t} to a child.",
    "What does the word {w} mean?",
    "Short answer please: what is {t}?",
)


def _definition(rng: Random, split: Split) -> Conversation:
    word, (kind, sentences) = rng.choice(list(DEFINITIONS.items()))
    term = article(word) if kind == "count" else word
    question = phrasing(rng, _ASK_DEFINITION, split).format(t=term, w=word)
    chosen = [sentences[0], *rng.sample(sentences[1:], k=rng.randint(1, len(sentences) - 1))]
    return Conversation((user(question), assistant(" ".join(chosen))))


_ASK_WHY = (
    "{q}",
    "{q} Please explain.",
    "Explain briefly: {q}",
    "My son asks: {q}",
    "I always wondered: {q}",
    "Could you tell me the reason? {q}",
    "{q} Answer in a few steps.",
)


def _explanation(rng: Random, split: Split) -> Conversation:
    question, lines = rng.choice(EXPLANATIONS)
    asked = phrasing(rng, _ASK_WHY, split).format(q=question)
    if "steps" in asked or rng.random() < 0.4:
        text = "\n".join(f"{i}. {line}" for i, line in enumerate(lines, start=1))
    else:
        text = " ".join(lines)
    return Conversation((user(asked), assistant(text)))


_ASK_NOTE = (
    "Write a short note to {n} about the {t} on {d}.",
    "Please draft a message for {n}: the {t} is on {d}.",
    "I need two sentences to tell {n} that the {t} moves to {d}.",
    "Tell {n} in a friendly note that the {t} takes place on {d}.",
    "Draft a line to {n}. The {t} will be on {d}.",
)


def _note(rng: Random, split: Split) -> Conversation:
    n, m = two_names(rng)
    topic = rng.choice(
        ("meeting", "dinner", "concert", "party", "workshop", "picnic", "lesson", "game", "visit")
    )
    day = rng.choice(("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday"))
    asked = phrasing(rng, _ASK_NOTE, split).format(n=n, t=topic, d=day)
    text = rng.choice(
        (
            "Dear {n}, the {t} will be on {d}. I hope to see you there. Best wishes",
            "Hi {n}! Just a short note: the {t} is on {d}. See you soon.",
            "Hello {n}, please note that the {t} takes place on {d}. Let me know if that works for you.",
        )
    ).format(n=n, t=topic, d=day)
    if rng.random() < 0.5:
        asked, text = f"{asked} Sign it with {m}.", f"{text}\n{m}"
    return Conversation((user(asked), assistant(text)))


def conversation(rng: Random, split: Split) -> Conversation:
    """A story, a definition, an explanation or a note."""
    return rng.choices((_story, _definition, _explanation, _note), (0.45, 0.25, 0.15, 0.15))[0](rng, split)

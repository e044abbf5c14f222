"""Short stories that end, definitions and explanations."""

from __future__ import annotations

from random import Random

from dspine_cluster.miniature.data import prose_requests
from dspine_cluster.miniature.data.conversation import Conversation, Split, assistant, phrasing, user
from dspine_cluster.miniature.data.facts import DEFINITIONS, EXPLANATIONS
from dspine_cluster.miniature.data.words import ANIMALS, COLOURS, WEEKDAYS, article, pronoun, two_names

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
_DEEDS = (
    "find",
    "buy",
    "paint",
    "draw",
    "sell",
    "hide",
    "clean",
    "borrow",
    "repair",
    "carry home",
    "look for",
    "make",
)
_THINGS = ("hat", "lamp", "drum", "kite", "bell", "chair", "door", "cup", "basket", "boat", "clock", "book", "box",
           "ring", "ladder", "wheel", "coat", "chest")  # fmt: skip
_PROBLEMS = ("it was not easy", "nobody knew how", "there was little time", "the others laughed")
_EFFORTS = (
    "tried again and again",
    "asked everyone for help",
    "worked until late at night",
    "did not give up",
)
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


def _goal(rng: Random) -> tuple[str, str, str, str]:
    """A wish, problem, effort and success; of the wishes there are so many that a story can only copy its own."""
    wish = f"{rng.choice(_DEEDS)} {article(f'{rng.choice(COLOURS)} {rng.choice(_THINGS)}')}"
    success = rng.choice((f"was able to {wish}", f"managed to {wish}"))
    return wish, rng.choice(_PROBLEMS), rng.choice(_EFFORTS), success


def _story(rng: Random, split: Split) -> Conversation:
    n, m = two_names(rng)
    animal, animal2 = rng.sample(ANIMALS, k=2)
    trait, place = rng.choice(_TRAITS), rng.choice(_PLACES)
    colour = rng.choice(("", "", f"{rng.choice(COLOURS)} "))
    who = f"{article(f'{trait} {colour}{animal}')} named {n}"
    request = phrasing(rng, prose_requests.ASK_STORY, split)
    copied = "{w}" in request and rng.random() < 0.6
    wish, problem, effort, success = _goal(rng) if copied else rng.choice(_WISHES)
    slots = {
        "n": n, "m": m, "w": wish, "who": who, "who_c": who[0].upper() + who[1:],
        "place": place, "place_c": place[0].upper() + place[1:],
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
    return Conversation((user(request.format(**slots)), assistant(text)))


def _definition(rng: Random, split: Split) -> Conversation:
    word, (kind, sentences) = rng.choice(list(DEFINITIONS.items()))
    term = article(word) if kind == "count" else word
    question = phrasing(rng, prose_requests.ASK_DEFINITION, split).format(t=term, w=word)
    chosen = [sentences[0], *rng.sample(sentences[1:], k=rng.randint(1, len(sentences) - 1))]
    return Conversation((user(question), assistant(" ".join(chosen))))


def _explanation(rng: Random, split: Split) -> Conversation:
    question, lines = rng.choice(EXPLANATIONS)
    asked = phrasing(rng, prose_requests.ASK_WHY, split).format(q=question)
    if "steps" in asked or rng.random() < 0.4:
        text = "\n".join(f"{i}. {line}" for i, line in enumerate(lines, start=1))
    else:
        text = " ".join(lines)
    return Conversation((user(asked), assistant(text)))


def _note(rng: Random, split: Split) -> Conversation:
    n, m = two_names(rng)
    topic = rng.choice(
        ("meeting", "dinner", "concert", "party", "workshop", "picnic", "lesson", "game", "visit")
    )
    day = rng.choice(WEEKDAYS)
    asked = phrasing(rng, prose_requests.ASK_NOTE, split).format(n=n, t=topic, d=day)
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

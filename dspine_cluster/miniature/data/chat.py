"""Small talk over one or several turns: greetings, names to remember, moods, plans and simple questions."""

from __future__ import annotations

from collections.abc import Callable
from random import Random

from dspine_cluster.miniature.data import chat_requests
from dspine_cluster.miniature.data.conversation import Conversation, Message, Split, assistant, phrasing, user
from dspine_cluster.miniature.data.facts import CAPITALS, OPPOSITES
from dspine_cluster.miniature.data.words import ANIMALS, CITIES, COLOURS, WEEKDAYS, article, first_name

Exchange = Callable[[Random, Split], list[Message]]

_GREETED = (
    "Hello! How can I help you today?",
    "Hi! Nice to meet you. What would you like to talk about?",
    "Hello! I am doing well, thank you. How are you?",
    "Hi there! What can I do for you?",
)


def _greeting(rng: Random, split: Split) -> list[Message]:
    return [user(phrasing(rng, chat_requests.GREETINGS, split)), assistant(rng.choice(_GREETED))]


_INTRODUCED = (
    "Nice to meet you, {n}! How do you like living in {c}?",
    "Hello {n}! {c} is a lovely place. What brings you here?",
    "Welcome, {n}! What can I do for you?",
)


def _introduction(rng: Random, split: Split) -> list[Message]:
    n, c = first_name(rng), rng.choice(CITIES)
    messages = [
        user(phrasing(rng, chat_requests.INTRODUCTIONS, split).format(n=n, c=c)),
        assistant(rng.choice(_INTRODUCED).format(n=n, c=c)),
    ]
    if rng.random() < 0.4:
        messages += rng.choice((_feeling, _favourite, _opposite))(rng, split)
    if rng.random() < 0.5:
        answer = rng.choice((f"Your name is {n}.", f"You are {n}."))
        messages += [user(phrasing(rng, chat_requests.NAME_QUESTIONS, split)), assistant(answer)]
    else:
        answer = rng.choice((f"You live in {c}.", f"You told me that you live in {c}."))
        messages += [user(phrasing(rng, chat_requests.CITY_QUESTIONS, split)), assistant(answer)]
    return messages


_FEELINGS: tuple[tuple[str, str], ...] = (
    ("tired", "I am sorry to hear that. Maybe a short walk or an early night will help."),
    ("happy", "That is wonderful! What made your day so good?"),
    ("sad", "I am sorry that you feel sad. Do you want to talk about it?"),
    ("bored", "You could read a book, call a friend or go outside for a while."),
    ("hungry", "How about a warm soup or some fresh bread?"),
    ("nervous", "Take a deep breath. You can do this."),
    ("sick", "I hope you get well soon. Drink enough water and rest."),
    ("excited", "How nice! What are you looking forward to?"),
    ("angry", "I understand. Take a moment to calm down before you decide anything."),
    ("lonely", "I am here to talk. You could also call someone you like."),
)


def _feeling(rng: Random, split: Split) -> list[Message]:
    feeling, answer = rng.choice(_FEELINGS)
    return [user(phrasing(rng, chat_requests.SAY_FEELING, split).format(f=feeling)), assistant(answer)]


_LIKED = (
    "The {v} is a fine choice! What do you like about it?",
    "I like the {v} too. It is a lovely {k}.",
    "Oh, the {v}! Many people like that {k}.",
)


def _favourite(rng: Random, split: Split) -> list[Message]:
    kind, value = rng.choice((("animal", rng.choice(ANIMALS)), ("colour", f"colour {rng.choice(COLOURS)}")))
    return [
        user(phrasing(rng, chat_requests.SAY_FAVOURITE, split).format(k=kind, v=value)),
        assistant(rng.choice(_LIKED).format(k=kind, v=value)),
    ]


def _capital(rng: Random, split: Split) -> list[Message]:
    country, city = rng.choice(list(CAPITALS.items()))
    answer = rng.choice((f"The capital of {country} is {city}.", f"{city} is the capital of {country}."))
    return [user(phrasing(rng, chat_requests.ASK_CAPITAL, split).format(x=country)), assistant(answer)]


def _opposite(rng: Random, split: Split) -> list[Message]:
    first, second = rng.choice(list(OPPOSITES.items()))
    if rng.random() < 0.5:
        first, second = second, first
    question = phrasing(rng, chat_requests.ASK_OPPOSITE, split).format(x=first)
    return [user(question), assistant(f"The opposite of {first} is {second}.")]


_PLANNED = (
    "{c} on {d} sounds great! You could walk through the old town and have lunch outside.",
    "How nice! In {c} I would visit a museum first and then a quiet park.",
    "Enjoy {c}! Check the weather for {d} and take good shoes.",
)


def _plan(rng: Random, split: Split) -> list[Message]:
    slots = {"d": rng.choice(WEEKDAYS), "c": rng.choice(CITIES), "n": first_name(rng)}
    messages = [
        user(phrasing(rng, chat_requests.SAY_PLAN, split).format(**slots)),
        assistant(rng.choice(_PLANNED).format(**slots)),
    ]
    if rng.random() < 0.6:
        question, answer = phrasing(rng, chat_requests.AFTER_PLAN, split)
        messages += [user(question), assistant(answer.format(**slots))]
    return messages


_PET = (
    "{n} is a good name for {a}! How old is {n}?",
    "Say hello to {n} from me. Having {a} must be fun.",
    "That is sweet. What does {n} like to eat?",
)


def _pet(rng: Random, split: Split) -> list[Message]:
    animal = rng.choice(ANIMALS)
    slots = {"n": first_name(rng), "b": animal, "a": article(animal)}
    question, answer = phrasing(rng, chat_requests.AFTER_PET, split)
    return [
        user(phrasing(rng, chat_requests.SAY_PET, split).format(**slots)),
        assistant(rng.choice(_PET).format(**slots)),
        user(question.format(**slots)),
        assistant(answer.format(**slots)),
    ]


_PARTED = (
    "Goodbye! Have a nice day.",
    "You are welcome! See you soon.",
    "Take care and come back any time.",
)


def _farewell(rng: Random, split: Split) -> list[Message]:
    return [user(phrasing(rng, chat_requests.FAREWELLS, split)), assistant(rng.choice(_PARTED))]


_EXCHANGES: tuple[Exchange, ...] = (_feeling, _favourite, _capital, _opposite, _plan, _pet, _introduction)


def conversation(rng: Random, split: Split) -> Conversation:
    """One to three exchanges, sometimes with a greeting before and a farewell after."""
    messages = _greeting(rng, split) if rng.random() < 0.3 else []
    for exchange in rng.sample(_EXCHANGES, k=rng.choice((1, 1, 2, 3))):
        messages += exchange(rng, split)
    if rng.random() < 0.2:
        messages += _farewell(rng, split)
    return Conversation(tuple(messages))

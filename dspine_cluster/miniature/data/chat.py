"""Small talk over one or several turns: greetings, names to remember, moods, plans and simple questions."""

from __future__ import annotations

from collections.abc import Callable
from random import Random

from dspine_cluster.miniature.data.conversation import Conversation, Message, Split, assistant, phrasing, user
from dspine_cluster.miniature.data.facts import CAPITALS, OPPOSITES
from dspine_cluster.miniature.data.words import ANIMALS, CITIES, COLOURS, WEEKDAYS, article, first_name

Exchange = Callable[[Random, Split], list[Message]]

_GREETINGS = ("Hello!", "Hi!", "Good morning!", "Hey there!", "Good evening!", "Hi, how are you?",
              "Hello, how is it going?", "Good afternoon!", "Hey!", "Hello there, nice to meet you!")  # fmt: skip
_GREETED = (
    "Hello! How can I help you today?",
    "Hi! Nice to meet you. What would you like to talk about?",
    "Hello! I am doing well, thank you. How are you?",
    "Hi there! What can I do for you?",
)


def _greeting(rng: Random, split: Split) -> list[Message]:
    return [user(phrasing(rng, _GREETINGS, split)), assistant(rng.choice(_GREETED))]


_INTRODUCTIONS = ("My name is {n} and I live in {c}.", "I am {n} from {c}.", "Hi, {n} here, writing from {c}.",
                  "You can call me {n}. My home is {c}.", "Let me introduce myself: {n}, from {c}.",
                  "I'm {n}. I moved to {c} last year.")  # fmt: skip
_INTRODUCED = (
    "Nice to meet you, {n}! How do you like living in {c}?",
    "Hello {n}! {c} is a lovely place. What brings you here?",
    "Welcome, {n}! What can I do for you?",
)
_NAME_QUESTIONS = ("What is my name?", "Do you remember my name?", "Who am I?", "Tell me my name.",
                   "Can you say what I am called?")  # fmt: skip
_CITY_QUESTIONS = ("Where do I live?", "Which city am I from?", "Do you know where my home is?",
                   "What is my city?", "Can you recall my town?")  # fmt: skip


def _introduction(rng: Random, split: Split) -> list[Message]:
    n, c = first_name(rng), rng.choice(CITIES)
    messages = [
        user(phrasing(rng, _INTRODUCTIONS, split).format(n=n, c=c)),
        assistant(rng.choice(_INTRODUCED).format(n=n, c=c)),
    ]
    if rng.random() < 0.4:
        messages += rng.choice((_feeling, _favourite, _opposite))(rng, split)
    if rng.random() < 0.5:
        answer = rng.choice((f"Your name is {n}.", f"You are {n}."))
        messages += [user(phrasing(rng, _NAME_QUESTIONS, split)), assistant(answer)]
    else:
        answer = rng.choice((f"You live in {c}.", f"You told me that you live in {c}."))
        messages += [user(phrasing(rng, _CITY_QUESTIONS, split)), assistant(answer)]
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
_SAY_FEELING = ("I am {f} today.", "I feel {f}.", "I feel so {f} right now.", "Today I am very {f}.",
                "Somehow I am {f}.", "I have been {f} all day.", "It is late and I am {f}.")  # fmt: skip


def _feeling(rng: Random, split: Split) -> list[Message]:
    feeling, answer = rng.choice(_FEELINGS)
    return [user(phrasing(rng, _SAY_FEELING, split).format(f=feeling)), assistant(answer)]


_SAY_FAVOURITE = ("My favourite {k} is the {v}.", "I like the {v} most. What about you?", "I love the {v}!",
                  "Do you like the {v}?", "For me the best {k} is the {v}.", "I saw a {v} today!")  # fmt: skip
_LIKED = (
    "The {v} is a fine choice! What do you like about it?",
    "I like the {v} too. It is a lovely {k}.",
    "Oh, the {v}! Many people like that {k}.",
)


def _favourite(rng: Random, split: Split) -> list[Message]:
    kind, value = rng.choice((("animal", rng.choice(ANIMALS)), ("colour", f"colour {rng.choice(COLOURS)}")))
    return [
        user(phrasing(rng, _SAY_FAVOURITE, split).format(k=kind, v=value)),
        assistant(rng.choice(_LIKED).format(k=kind, v=value)),
    ]


_ASK_CAPITAL = ("What is the capital of {x}?", "Which city is the capital of {x}?", "Tell me the capital of {x}.",
                "{x}: what is its capital?", "Name the capital city of {x}.", "Capital of {x}?")  # fmt: skip


def _capital(rng: Random, split: Split) -> list[Message]:
    country, city = rng.choice(list(CAPITALS.items()))
    answer = rng.choice((f"The capital of {country} is {city}.", f"{city} is the capital of {country}."))
    return [user(phrasing(rng, _ASK_CAPITAL, split).format(x=country)), assistant(answer)]


_ASK_OPPOSITE = ("What is the opposite of {x}?", "Give me the opposite of {x}.", "Which word is the opposite of {x}?",
                 "{x} - what is the opposite?", "The opposite of {x} is what?", "Opposite of {x}?")  # fmt: skip


def _opposite(rng: Random, split: Split) -> list[Message]:
    first, second = rng.choice(list(OPPOSITES.items()))
    if rng.random() < 0.5:
        first, second = second, first
    question = phrasing(rng, _ASK_OPPOSITE, split).format(x=first)
    return [user(question), assistant(f"The opposite of {first} is {second}.")]


_SAY_PLAN = ("On {d} I will travel to {c}.", "I plan to visit {n} in {c} on {d}.", "What should I do in {c} on {d}?",
             "I have a free {d} in {c}. Any ideas?", "{d} is my day off and I am going to {c}.",
             "Next {d} we go to {c}. Any tips?")  # fmt: skip
_PLANNED = (
    "{c} on {d} sounds great! You could walk through the old town and have lunch outside.",
    "How nice! In {c} I would visit a museum first and then a quiet park.",
    "Enjoy {c}! Check the weather for {d} and take good shoes.",
)
_AFTER_PLAN = (
    ("Where am I going?", "You are going to {c}."),
    ("Which day was it?", "It was {d}."),
    ("When is my trip?", "Your trip is on {d}."),
    ("What was the city again?", "The city is {c}."),
    ("Do you still know my plan?", "Yes, you are going to {c} on {d}."),
)


def _plan(rng: Random, split: Split) -> list[Message]:
    slots = {"d": rng.choice(WEEKDAYS), "c": rng.choice(CITIES), "n": first_name(rng)}
    messages = [
        user(phrasing(rng, _SAY_PLAN, split).format(**slots)),
        assistant(rng.choice(_PLANNED).format(**slots)),
    ]
    if rng.random() < 0.6:
        question, answer = phrasing(rng, _AFTER_PLAN, split)
        messages += [user(question), assistant(answer.format(**slots))]
    return messages


_SAY_PET = ("I have {a} called {n}.", "My {b} is named {n}.", "{n} is my {b}.", "We have {a}, {n}.",
            "This morning my {b} {n} woke me up.", "Let me tell you about my {b} {n}.")  # fmt: skip
_PET = (
    "{n} is a good name for {a}! How old is {n}?",
    "Say hello to {n} from me. Having {a} must be fun.",
    "That is sweet. What does {n} like to eat?",
)
_AFTER_PET = (
    ("What is my {b} called?", "Your {b} is called {n}."),
    ("Which animal do I have?", "You have {a}."),
    ("What animal is {n}?", "{n} is {a}."),
    ("Do you remember the name of my {b}?", "Yes, your {b} is called {n}."),
    ("Who is {n}?", "{n} is your {b}."),
)


def _pet(rng: Random, split: Split) -> list[Message]:
    animal = rng.choice(ANIMALS)
    slots = {"n": first_name(rng), "b": animal, "a": article(animal)}
    question, answer = phrasing(rng, _AFTER_PET, split)
    return [
        user(phrasing(rng, _SAY_PET, split).format(**slots)),
        assistant(rng.choice(_PET).format(**slots)),
        user(question.format(**slots)),
        assistant(answer.format(**slots)),
    ]


_FAREWELLS = ("Bye!", "Thank you, goodbye.", "I have to go now.", "See you later!", "Good night!", "That was helpful.",
              "Thanks for the talk!", "Talk to you tomorrow.", "Thanks!", "Take care!")  # fmt: skip
_PARTED = (
    "Goodbye! Have a nice day.",
    "You are welcome! See you soon.",
    "Take care and come back any time.",
)


def _farewell(rng: Random, split: Split) -> list[Message]:
    return [user(phrasing(rng, _FAREWELLS, split)), assistant(rng.choice(_PARTED))]


_EXCHANGES: tuple[Exchange, ...] = (_feeling, _favourite, _capital, _opposite, _plan, _pet, _introduction)


def conversation(rng: Random, split: Split) -> Conversation:
    """One to three exchanges, sometimes with a greeting before and a farewell after."""
    messages = _greeting(rng, split) if rng.random() < 0.3 else []
    for exchange in rng.sample(_EXCHANGES, k=rng.choice((1, 1, 2, 3))):
        messages += exchange(rng, split)
    if rng.random() < 0.2:
        messages += _farewell(rng, split)
    return Conversation(tuple(messages))

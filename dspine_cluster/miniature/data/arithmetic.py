"""School arithmetic with worked answers. The last line is always `Answer: N`."""

from __future__ import annotations

from collections.abc import Callable
from random import Random

from dspine_cluster.miniature.data.arithmetic_requests import (
    ASK,
    GAIN,
    GROUPS,
    LOSS,
    MONEY,
    SHARE,
    TWO_STEPS,
)
from dspine_cluster.miniature.data.conversation import Conversation, Split, assistant, phrasing, user
from dspine_cluster.miniature.data.words import ITEMS, first_name, pronoun, two_names

Worked = tuple[str, list[str], int]
"""Question, lines of the worked answer, result."""


def added(a: int, b: int) -> str:
    """One line that adds tens and ones apart."""
    if a < 10 or b < 10:
        return f"{a} + {b} = {a + b}"
    tens, ones = a // 10 * 10 + b // 10 * 10, a % 10 + b % 10
    return f"{a // 10 * 10} + {b // 10 * 10} = {tens}, {a % 10} + {b % 10} = {ones}, so {a} + {b} = {a + b}"


def subtracted(a: int, b: int) -> str:
    """One line that takes away the tens, then the ones."""
    if b < 10 or b % 10 == 0:
        return f"{a} - {b} = {a - b}"
    tens = b // 10 * 10
    return f"{a} - {tens} = {a - tens}, {a - tens} - {b % 10} = {a - b}, so {a} - {b} = {a - b}"


def multiplied(a: int, b: int) -> str:
    """One line; `b` is a single digit or ten."""
    if a <= 10:
        return f"{a} * {b} = {a * b}"
    tens, ones = a // 10 * 10, a % 10
    return f"{tens} * {b} = {tens * b}, {ones} * {b} = {ones * b}, so {a} * {b} = {a * b}"


def _sum(rng: Random, split: Split) -> Worked:
    a, b = rng.randint(2, 99), rng.randint(2, 99)
    return phrasing(rng, ASK, split).format(e=f"{a} + {b}"), [added(a, b) + "."], a + b


def _three(rng: Random, split: Split) -> Worked:
    a, b, c = (rng.randint(2, 60) for _ in range(3))
    lines = [f"First step: {added(a, b)}.", f"Second step: {added(a + b, c)}."]
    return phrasing(rng, ASK, split).format(e=f"{a} + {b} + {c}"), lines, a + b + c


def _difference(rng: Random, split: Split) -> Worked:
    b, rest = rng.randint(2, 70), rng.randint(1, 60)
    a = b + rest
    return phrasing(rng, ASK, split).format(e=f"{a} - {b}"), [subtracted(a, b) + "."], rest


def _product(rng: Random, split: Split) -> Worked:
    a, b = rng.randint(2, 40), rng.randint(2, 9)
    return phrasing(rng, ASK, split).format(e=f"{a} * {b}"), [multiplied(a, b) + "."], a * b


def _quotient(rng: Random, split: Split) -> Worked:
    a, b = rng.randint(2, 12), rng.randint(2, 9)
    lines = [f"{b} * {a} = {a * b}, so {a * b} / {b} = {a}."]
    return phrasing(rng, ASK, split).format(e=f"{a * b} / {b}"), lines, a


def _gain(rng: Random, split: Split) -> Worked:
    n, i, a, b = first_name(rng), rng.choice(ITEMS), rng.randint(2, 80), rng.randint(2, 60)
    question = phrasing(rng, GAIN, split).format(n=n, p=pronoun(n).capitalize(), i=i, a=a, b=b)
    return question, [f"{n} starts with {a} {i} and adds {b}.", added(a, b) + "."], a + b


def _loss(rng: Random, split: Split) -> Worked:
    (n, m), i, b, rest = two_names(rng), rng.choice(ITEMS), rng.randint(2, 50), rng.randint(1, 45)
    a = b + rest
    question = phrasing(rng, LOSS, split).format(n=n, m=m, p=pronoun(n).capitalize(), i=i, a=a, b=b)
    return question, [f"There are {a} {i} at first and {b} go away.", subtracted(a, b) + "."], rest


def _groups(rng: Random, split: Split) -> Worked:
    n, i, a, b = first_name(rng), rng.choice(ITEMS), rng.randint(2, 25), rng.randint(2, 9)
    question = phrasing(rng, GROUPS, split).format(n=n, i=i, a=a, b=b)
    return question, [f"That is {a} times {b} {i}.", multiplied(a, b) + "."], a * b


def _share(rng: Random, split: Split) -> Worked:
    n, i, a, b = first_name(rng), rng.choice(ITEMS), rng.randint(2, 12), rng.randint(2, 9)
    question = phrasing(rng, SHARE, split).format(n=n, i=i, t=a * b, b=b)
    return question, [f"We divide {a * b} {i} by {b}.", f"{b} * {a} = {a * b}, so {a * b} / {b} = {a}."], a


def _two_steps(rng: Random, split: Split) -> Worked:
    (n, m), i = two_names(rng), rng.choice(ITEMS)
    a, b = rng.randint(5, 60), rng.randint(2, 35)
    c = rng.randint(2, min(40, a + b - 1))
    question = phrasing(rng, TWO_STEPS, split).format(n=n, m=m, p=pronoun(n).capitalize(), i=i, a=a, b=b, c=c)
    lines = [
        f"{n} has {a} {i} and gets {b} more.",
        added(a, b) + ".",
        f"Then {c} {i} go away.",
        subtracted(a + b, c) + ".",
    ]
    return question, lines, a + b - c


def _money(rng: Random, split: Split) -> Worked:
    n, i, a, b = first_name(rng), rng.choice(ITEMS), rng.randint(2, 9), rng.randint(2, 9)
    change = rng.randint(1, 30)
    total = a * b + change
    question = phrasing(rng, MONEY, split).format(n=n, i=i, a=a, b=b, t=total)
    lines = [
        f"The {i} cost {multiplied(a, b)} dollars.",
        f"The change is {subtracted(total, a * b)} dollars.",
    ]
    return question, lines, change


_KINDS: tuple[Callable[[Random, Split], Worked], ...] = (
    _sum,
    _sum,
    _difference,
    _difference,
    _three,
    _product,
    _quotient,
    _gain,
    _loss,
    _groups,
    _share,
    _two_steps,
    _two_steps,
    _money,
)


def conversation(rng: Random, split: Split) -> Conversation:
    """One problem. One time in six the work goes into the reasoning and the answer is short."""
    question, lines, result = rng.choice(_KINDS)(rng, split)
    if rng.random() < 1 / 6:
        answer = assistant(f"Answer: {result}", reasoning="\n".join(lines))
    else:
        answer = assistant("\n".join([*lines, f"Answer: {result}"]))
    return Conversation((user(question), answer), expected=str(result))

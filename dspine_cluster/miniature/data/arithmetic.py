"""School arithmetic with worked answers. The last line is always `Answer: N`."""

from __future__ import annotations

from collections.abc import Callable
from random import Random

from dspine_cluster.miniature.data.conversation import Conversation, Split, assistant, phrasing, user
from dspine_cluster.miniature.data.words import ITEMS, first_name, pronoun, two_names

Worked = tuple[str, list[str], int]
"""Question, lines of the worked answer, result."""

_ASK = (
    "What is {e}?",
    "Calculate {e}.",
    "How much is {e}?",
    "Please work out {e}.",
    "Can you compute {e} for me?",
    "{e} = ?",
    "Solve {e} step by step.",
    "I need the result of {e}.",
    "Find the value of {e}.",
    "Could you tell me what {e} gives?",
    "Compute {e} and show the steps.",
    "Tell me {e}.",
)


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
    return phrasing(rng, _ASK, split).format(e=f"{a} + {b}"), [added(a, b) + "."], a + b


def _three(rng: Random, split: Split) -> Worked:
    a, b, c = (rng.randint(2, 60) for _ in range(3))
    lines = [f"First step: {added(a, b)}.", f"Second step: {added(a + b, c)}."]
    return phrasing(rng, _ASK, split).format(e=f"{a} + {b} + {c}"), lines, a + b + c


def _difference(rng: Random, split: Split) -> Worked:
    b, rest = rng.randint(2, 70), rng.randint(1, 60)
    a = b + rest
    return phrasing(rng, _ASK, split).format(e=f"{a} - {b}"), [subtracted(a, b) + "."], rest


def _product(rng: Random, split: Split) -> Worked:
    a, b = rng.randint(2, 40), rng.randint(2, 9)
    return phrasing(rng, _ASK, split).format(e=f"{a} * {b}"), [multiplied(a, b) + "."], a * b


def _quotient(rng: Random, split: Split) -> Worked:
    a, b = rng.randint(2, 12), rng.randint(2, 9)
    lines = [f"{b} * {a} = {a * b}, so {a * b} / {b} = {a}."]
    return phrasing(rng, _ASK, split).format(e=f"{a * b} / {b}"), lines, a


_GAIN = (
    "{n} has {a} {i}. {p} buys {b} more. How many {i} does {n} have now?",
    "{n} owns {a} {i} and gets {b} more as a gift. How many {i} is that in total?",
    "There are {a} {i} in {n}'s bag. {n} puts in {b} more. How many {i} are in the bag?",
    "{n} collected {a} {i} yesterday and {b} {i} today. How many did {n} collect in all?",
    "At first {n} had {a} {i}; then {n} found another {b}. How many {i} does {n} have?",
    "{n} picked {a} {i} in the morning and {b} in the afternoon. How many {i} are there altogether?",
)
_LOSS = (
    "{n} has {a} {i}. {p} gives {b} of them to {m}. How many {i} are left?",
    "{n} had {a} {i} and sold {b}. How many {i} remain?",
    "There were {a} {i} on the table. {n} took {b}. How many {i} are still there?",
    "{n} baked a plan: of {a} {i}, {b} go to {m}. How many {i} does {n} keep?",
    "Out of {a} {i}, {n} lost {b}. How many {i} does {n} still have?",
    "{n} brings {a} {i} to school and hands out {b}. How many {i} come back home?",
)
_GROUPS = (
    "{n} has {a} boxes with {b} {i} in each. How many {i} are there?",
    "A box holds {b} {i}. {n} fills {a} boxes. How many {i} does {n} need?",
    "{n} buys {a} bags of {b} {i}. How many {i} is that?",
    "Each of {a} children gets {b} {i} from {n}. How many {i} does {n} hand out?",
    "{n} lays {a} rows of {b} {i}. How many {i} does {n} lay in total?",
)
_SHARE = (
    "{n} shares {t} {i} equally among {b} friends. How many {i} does each friend get?",
    "{t} {i} are packed into {b} equal boxes by {n}. How many {i} go in one box?",
    "{n} splits {t} {i} into {b} equal groups. How big is each group?",
    "If {b} children divide {t} {i} evenly, how many {i} does each child get?",
    "{n} has {t} {i} and {b} bags. With the same number in every bag, how many {i} are in a bag?",
)
_TWO_STEPS = (
    "{n} has {a} {i}. {p} buys {b} more and then gives {c} to {m}. How many {i} does {n} have now?",
    "{n} starts the day with {a} {i}, finds {b} and loses {c}. How many {i} are left?",
    "There are {a} {i} in the shop. {n} delivers {b} more and {m} buys {c}. How many {i} are in the shop now?",
    "{n} had {a} {i}. After getting {b} from {m} and using {c}, how many {i} does {n} have?",
    "{m} gives {n} {b} {i}, who already had {a}. Then {n} drops {c}. How many {i} does {n} have in the end?",
)
_MONEY = (
    "{n} buys {a} {i} at {b} dollars each and pays with {t} dollars. How much change does {n} get?",
    "One of the {i} costs {b} dollars. {n} takes {a} of them and pays {t} dollars. What is the change?",
    "{n} pays {t} dollars for {a} {i} that cost {b} dollars each. How many dollars come back?",
    "The price is {b} dollars a piece. {n} buys {a} {i} with {t} dollars. How much money is left?",
    "With {t} dollars {n} buys {a} {i}, {b} dollars each. How many dollars does {n} keep?",
)


def _gain(rng: Random, split: Split) -> Worked:
    n, i, a, b = first_name(rng), rng.choice(ITEMS), rng.randint(2, 80), rng.randint(2, 60)
    question = phrasing(rng, _GAIN, split).format(n=n, p=pronoun(n).capitalize(), i=i, a=a, b=b)
    return question, [f"{n} starts with {a} {i} and adds {b}.", added(a, b) + "."], a + b


def _loss(rng: Random, split: Split) -> Worked:
    (n, m), i, b, rest = two_names(rng), rng.choice(ITEMS), rng.randint(2, 50), rng.randint(1, 45)
    a = b + rest
    question = phrasing(rng, _LOSS, split).format(n=n, m=m, p=pronoun(n).capitalize(), i=i, a=a, b=b)
    return question, [f"There are {a} {i} at first and {b} go away.", subtracted(a, b) + "."], rest


def _groups(rng: Random, split: Split) -> Worked:
    n, i, a, b = first_name(rng), rng.choice(ITEMS), rng.randint(2, 25), rng.randint(2, 9)
    question = phrasing(rng, _GROUPS, split).format(n=n, i=i, a=a, b=b)
    return question, [f"That is {a} times {b} {i}.", multiplied(a, b) + "."], a * b


def _share(rng: Random, split: Split) -> Worked:
    n, i, a, b = first_name(rng), rng.choice(ITEMS), rng.randint(2, 12), rng.randint(2, 9)
    question = phrasing(rng, _SHARE, split).format(n=n, i=i, t=a * b, b=b)
    return question, [f"We divide {a * b} {i} by {b}.", f"{b} * {a} = {a * b}, so {a * b} / {b} = {a}."], a


def _two_steps(rng: Random, split: Split) -> Worked:
    (n, m), i = two_names(rng), rng.choice(ITEMS)
    a, b = rng.randint(5, 60), rng.randint(2, 35)
    c = rng.randint(2, min(40, a + b - 1))
    question = phrasing(rng, _TWO_STEPS, split).format(
        n=n, m=m, p=pronoun(n).capitalize(), i=i, a=a, b=b, c=c
    )
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
    question = phrasing(rng, _MONEY, split).format(n=n, i=i, a=a, b=b, t=total)
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

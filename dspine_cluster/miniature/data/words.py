"""Word lists shared by the generators, and invented names that can only be copied, never memorised."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

NAMES = (
    "Anna", "Ben", "Carla", "David", "Elena", "Felix", "Grace", "Hugo", "Ines", "Jonas", "Karin", "Leo",
    "Maria", "Nils", "Olga", "Paul", "Rosa", "Simon", "Tara", "Victor", "Wendy", "Yusuf", "Zoe", "Ahmed",
    "Bianca", "Chen", "Dora", "Emil", "Farah", "Gita", "Hassan", "Ivan", "Julia", "Kofi", "Lina", "Mateo",
    "Nora", "Oscar", "Priya", "Quinn", "Ravi", "Sara", "Tom", "Uma", "Vera", "Will", "Xenia", "Yara",
    "Amir", "Clara", "Diego", "Erik", "Freya", "Hana", "Igor", "Kenji", "Laila", "Marco", "Nadia", "Omar",
    "Petra", "Sofia", "Theo", "Anton", "Beth", "Cora", "Dana", "Eva", "Finn", "Greta", "Henry", "Iris",
    "Jack", "Kate", "Lucas", "Mila", "Noah", "Otto", "Pia", "Ruth", "Sam", "Tina",
)  # fmt: skip

FEMALE = frozenset({
    "Anna", "Beth", "Bianca", "Carla", "Clara", "Cora", "Dana", "Dora", "Elena", "Eva", "Farah", "Freya",
    "Gita", "Grace", "Greta", "Hana", "Ines", "Iris", "Julia", "Karin", "Kate", "Laila", "Lina", "Maria",
    "Mila", "Nadia", "Nora", "Olga", "Petra", "Pia", "Priya", "Rosa", "Ruth", "Sara", "Sofia", "Tara",
    "Tina", "Uma", "Vera", "Wendy", "Xenia", "Yara", "Zoe",
})  # fmt: skip

SURNAMES = (
    "Adler", "Berg", "Costa", "Diaz", "Evans", "Fischer", "Garcia", "Haas", "Ito", "Jensen", "Klein",
    "Lopez", "Meyer", "Novak", "Olsen", "Park", "Quist", "Rossi", "Silva", "Tanaka", "Ueda", "Vogel",
    "Weber", "Young", "Zhang", "Baker", "Carter", "Fox", "Green", "Hill", "King", "Lane", "Moore", "Reed",
    "Stone", "Ward",
)  # fmt: skip

ITEMS = (
    "apples", "books", "cards", "coins", "eggs", "flowers", "marbles", "pencils", "stamps", "stickers",
    "oranges", "shells", "candles", "cookies", "balloons", "tickets", "buttons", "bottles", "plates",
    "roses", "pears", "toys", "bricks", "photos", "pens", "lemons", "cups", "beads", "nuts", "plums",
    "keys", "boxes",
)  # fmt: skip

CITIES = (
    "Berlin", "Paris", "Madrid", "Rome", "Oslo", "Vienna", "Lisbon", "Prague", "Dublin", "Warsaw",
    "Athens", "Cairo", "Delhi", "Tokyo", "Seoul", "Lima", "Boston", "Chicago", "Denver", "Sydney",
    "Zurich", "Geneva", "Munich", "Hamburg", "Porto", "Turin", "Lyon", "Kyoto", "Osaka", "Bergen",
)  # fmt: skip

ANIMALS = (
    "fox", "owl", "bear", "rabbit", "mouse", "cat", "dog", "turtle", "frog", "squirrel", "hedgehog",
    "duck", "goat", "horse", "crow", "beaver", "badger", "otter", "deer", "sparrow", "donkey", "goose",
    "lamb", "pony",
)  # fmt: skip

COLOURS = (
    "red", "blue", "green", "yellow", "white", "black", "brown", "grey", "purple", "orange", "silver",
    "golden",
)  # fmt: skip

WEEKDAYS = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")

_ONSETS = (
    "b", "br", "c", "ch", "d", "dr", "f", "g", "gr", "h", "j", "k", "kl", "l", "m", "n", "p", "pr", "r",
    "s", "sh", "st", "t", "tr", "v", "w", "z",
)  # fmt: skip
_VOWELS = (
    "a", "e", "i", "o", "u", "ai", "ea", "ia", "io", "ou",
)  # fmt: skip
_ENDS = (
    "", "", "n", "r", "s", "l", "m", "t", "k", "x", "nd", "rt",
)  # fmt: skip


def first_name(rng: Random) -> str:
    """A common first name, or one time in five an invented one."""
    return invented_name(rng) if rng.random() < 0.2 else rng.choice(NAMES)


def invented_name(rng: Random) -> str:
    """A pronounceable name of two or three syllables."""
    syllables = [rng.choice(_ONSETS) + rng.choice(_VOWELS) for _ in range(rng.choice((2, 2, 3)))]
    return ("".join(syllables) + rng.choice(_ENDS)).capitalize()


def two_names(rng: Random) -> tuple[str, str]:
    """Two different first names."""
    first = first_name(rng)
    second = first_name(rng)
    while second == first:
        second = first_name(rng)
    return first, second


def pronoun(name: str) -> str:
    """Subject pronoun: she or he for known names, they otherwise."""
    if name in FEMALE:
        return "she"
    return "he" if name in NAMES else "they"


def article(noun: str) -> str:
    """The noun with a or an before it."""
    return f"{'an' if noun[0] in 'aeiou' else 'a'} {noun}"


def listed(words: Sequence[str]) -> str:
    """`a, b and c`."""
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} and {words[-1]}"

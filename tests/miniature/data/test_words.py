from random import Random

from dspine_cluster.miniature.data.words import (
    FEMALE,
    NAMES,
    article,
    first_name,
    invented_name,
    listed,
    pronoun,
    two_names,
)


def test_two_names_differ() -> None:
    assert all(len(set(two_names(Random(seed)))) == 2 for seed in range(500))


def test_some_first_names_are_invented_and_most_are_not() -> None:
    invented = sum(first_name(Random(seed)) not in NAMES for seed in range(1000))
    assert 100 < invented < 300


def test_invented_names_hardly_repeat() -> None:
    assert len({invented_name(Random(seed)) for seed in range(500)}) > 450


def test_pronouns_follow_the_name() -> None:
    assert set(FEMALE) <= set(NAMES)
    assert (pronoun("Anna"), pronoun("Ben"), pronoun("Zuklai")) == ("she", "he", "they")


def test_articles_follow_the_sound() -> None:
    assert (article("owl"), article("fox")) == ("an owl", "a fox")


def test_lists_end_with_and() -> None:
    assert (listed(["a"]), listed(["a", "b", "c"])) == ("a", "a, b and c")

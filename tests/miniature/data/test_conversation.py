from random import Random

from dspine_cluster.miniature.data.conversation import Conversation, Split, assistant, phrasing, user


def test_splits_share_no_phrasing_of_a_list_of_five_or_more() -> None:
    templates = [f"template {i}" for i in range(13)]
    drawn = {split: {phrasing(Random(i), templates, split) for i in range(300)} for split in Split}
    assert not drawn[Split.TRAIN] & drawn[Split.HELD_OUT]
    assert drawn[Split.TRAIN] | drawn[Split.HELD_OUT] == set(templates)


def test_short_lists_are_shared() -> None:
    assert (
        phrasing(Random(0), ["only"], Split.HELD_OUT) == phrasing(Random(0), ["only"], Split.TRAIN) == "only"
    )


def test_the_prompt_is_all_but_the_answer() -> None:
    question, answer = user("2 + 2?"), assistant("4")
    assert Conversation((question, answer)).prompt == (question,)

from collections import Counter
from itertools import islice

import pytest

from dspine_cluster.miniature.data.conversation import Conversation, Split
from dspine_cluster.miniature.data.mixture import SHARES, TASKS, documents


def test_shares_add_up_to_one() -> None:
    assert sum(SHARES.values()) == pytest.approx(1.0)


def test_a_seed_gives_the_same_documents_again() -> None:
    first, second = (list(islice(documents(3, Split.TRAIN), 60)) for _ in range(2))
    assert first == second
    assert first != list(islice(documents(4, Split.TRAIN), 60))


def test_plain_text_has_its_share() -> None:
    kinds = Counter(isinstance(d, Conversation) for d in islice(documents(1, Split.TRAIN), 2000))
    assert kinds[False] / 2000 == pytest.approx(
        SHARES["source"] + SHARES["topic"] + SHARES["repetition"], abs=0.02
    )


def test_every_task_has_a_share() -> None:
    assert set(TASKS) <= set(SHARES)

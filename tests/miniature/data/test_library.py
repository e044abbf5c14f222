from random import Random

from dspine_cluster.miniature.data.conversation import Split
from dspine_cluster.miniature.data.library import (
    source_excerpt,
    source_files,
    topic_excerpt,
    topics,
    vocabulary,
)


def test_no_file_is_in_both_splits() -> None:
    train, held_out = source_files(Split.TRAIN), source_files(Split.HELD_OUT)
    assert held_out
    assert not set(train) & set(held_out)


def test_no_topic_is_in_both_splits() -> None:
    train, held_out = topics(Split.TRAIN), topics(Split.HELD_OUT)
    assert held_out
    assert not set(train) & set(held_out)


def test_installed_packages_and_tests_are_left_out() -> None:
    parts = {part for path in source_files(Split.TRAIN) for part in path.parts}
    assert not parts & {"site-packages", "test", "idlelib"}


def test_source_excerpts_are_whole_lines_of_one_file() -> None:
    files = source_files(Split.TRAIN)[:5]
    texts = [path.read_text(encoding="utf-8", errors="ignore") for path in files]
    for seed in range(20):
        excerpt = source_excerpt(Random(seed), files, max_characters=400)
        assert len(excerpt) <= 400
        assert any(excerpt in text for text in texts)


def test_topic_excerpts_keep_to_their_limit() -> None:
    texts = topics(Split.TRAIN)
    assert all(len(topic_excerpt(Random(seed), texts, max_characters=300)) <= 300 for seed in range(20))


def test_the_vocabulary_has_each_word_of_the_topics_once() -> None:
    words = vocabulary(Split.TRAIN)
    assert len(words) == len(set(words)) > 1000
    assert {"statement", "function"} <= set(words)

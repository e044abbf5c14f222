from dspine_cluster.miniature.data.facts import CAPITALS, DEFINITIONS, EXPLANATIONS, OPPOSITES


def test_definitions_begin_with_their_word() -> None:
    for word, (kind, sentences) in DEFINITIONS.items():
        head = word if kind == "mass" else f" {word}"
        assert head.lower() in sentences[0].lower()[: len(word) + 4]
        assert len(sentences) >= 2


def test_explanations_answer_questions_in_whole_sentences() -> None:
    for question, lines in EXPLANATIONS:
        assert question.endswith("?")
        assert all(line.endswith(".") for line in lines)


def test_opposites_are_unambiguous_both_ways() -> None:
    words = [*OPPOSITES, *OPPOSITES.values()]
    assert len(words) == len(set(words))


def test_no_two_countries_share_a_capital() -> None:
    assert len(set(CAPITALS.values())) == len(CAPITALS)

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import replace

import torch
from hypothesis import given
from hypothesis import strategies as st

from dspine_cluster.engine.grammar_state import GrammarState
from tests.engine.grammar_cases import compile_for, regex

TOKENS = [b"a", b"b", b"ab", b"ba", b"aba", b"c", b"cab", b"", b"", b"bc"]
SPECIAL, EOS = 7, 8
LANGUAGE = {
    b"".join(parts) + end
    for count in range(1, 4)
    for parts in itertools.product((b"ab", b"b"), repeat=count)
    for end in (b"", b"c")
}
"""(ab|b){1,3}c?"""
GRAMMAR = compile_for(TOKENS, EOS, regex("(ab|b){1,3}c?"))
CPU = torch.device("cpu")
proposal_lists = st.lists(st.integers(0, len(TOKENS) - 1), max_size=6)


def naive_legal(output: Sequence[int]) -> set[int]:
    """Every token is tried: whether the text with it begins a string of the language, or is one and ends."""
    if EOS in output:
        return {EOS}
    text = b"".join(TOKENS[token] for token in output)
    legal = {
        token
        for token, more in enumerate(TOKENS)
        if more and any(string.startswith(text + more) for string in LANGUAGE)
    }
    return legal | ({EOS} if text in LANGUAGE else set())


@st.composite
def outputs(draw: st.DrawFn) -> list[int]:
    """The beginning of an output that the grammar allows and that has not ended."""
    output: list[int] = []
    for _ in range(draw(st.integers(0, 3))):
        legal = sorted(naive_legal(output) - {EOS})
        if not legal:
            break
        output.append(draw(st.sampled_from(legal)))
    return output


def text_of(tokens: Sequence[int]) -> bytes:
    return b"".join(TOKENS[token] for token in tokens)


def legal_rows(state: GrammarState, tokens: Sequence[int], proposals: Sequence[int]) -> list[set[int]]:
    rows = state.legal_tokens(tokens, proposals, CPU)
    return [set(torch.nonzero(row).flatten().tolist()) for row in rows]


@given(outputs(), proposal_lists)
def test_every_row_allows_what_a_matcher_does_that_tries_each_token(
    output: list[int], proposals: list[int]
) -> None:
    state = GrammarState(GRAMMAR, num_prompt_tokens=2)
    tokens = [5, 5, *output]
    legal = state.legal_block(tokens, proposals).tokens
    expected = [naive_legal([*output, *legal[:count]]) for count in range(len(legal) + 1)]
    assert legal_rows(state, tokens, legal) == expected


@given(outputs(), proposal_lists)
def test_drafted_proposals_are_kept_up_to_the_first_that_is_illegal(
    output: list[int], proposals: list[int]
) -> None:
    block = GrammarState(GRAMMAR, num_prompt_tokens=0).legal_block(output, proposals)
    for place, token in enumerate(block.tokens):
        before = [*output, *block.tokens[:place]]
        assert EOS not in before
        assert token in naive_legal(before)
        if place in block.forced:
            texts = {
                text for text in LANGUAGE if text.startswith(text_of(before)) and text != text_of(before)
            }
            assert all(text.startswith(text_of([*before, token])) for text in texts)
        else:
            assert token == proposals[place]
    place = len(block.tokens)
    follows = block.tokens == proposals[:place]
    if block.is_cut:
        assert follows
        assert EOS in block.tokens or proposals[place] not in naive_legal([*output, *block.tokens])
    elif follows:
        assert place == len(proposals)


def test_with_more_output_than_a_grammar_is_bounded_for_only_what_was_drafted_is_proposed() -> None:
    fixed = replace(compile_for(TOKENS, EOS, regex("cab(c|ba)cab")), max_forced_output_tokens=1)
    assert GrammarState(fixed, 0).legal_block([], [6, 5, 6]).forced == [0, 2]
    block = GrammarState(fixed, 0).legal_block([6], [5, 6, 0])
    assert (block.tokens, block.forced, block.is_cut) == ([5, 6], [], True)


def test_the_only_text_that_is_left_is_proposed_whatever_was_drafted() -> None:
    fixed = compile_for(TOKENS, EOS, regex("cab(c|ba)cab"))
    block = GrammarState(fixed, 0).legal_block([], [6, 5, 0, 0, 0])
    assert (block.tokens, block.forced, block.is_cut) == ([6, 5, 6], [0, 2], False)
    block = GrammarState(fixed, 0).legal_block([], [3, 5, 6])
    assert (block.tokens, block.forced, block.is_cut) == ([6], [0], False)
    block = GrammarState(fixed, 0).legal_block([], [6, 0, 6])
    assert (block.tokens, block.forced, block.is_cut) == ([6], [0], True)


@given(outputs(), st.lists(proposal_lists, max_size=4))
def test_proposals_leave_no_trace(output: list[int], blocks: list[list[int]]) -> None:
    state = GrammarState(GRAMMAR, num_prompt_tokens=0)
    for count in range(len(output) + 1):
        for proposals in blocks:
            state.legal_tokens(output[:count], state.legal_block(output[:count], proposals).tokens, CPU)
        assert legal_rows(state, output[:count], []) == [naive_legal(output[:count])]


def test_tokens_without_a_text_are_never_legal() -> None:
    assert not legal_rows(GrammarState(GRAMMAR, 0), [], [])[0] & {SPECIAL, EOS}


def test_behind_the_end_only_the_end_is_legal() -> None:
    state = GrammarState(GRAMMAR, num_prompt_tokens=0)
    assert state.legal_block([], [1, 5, EOS, 0]).tokens == [1, 5, EOS]
    assert legal_rows(state, [], [1, 5, EOS])[-1] == {EOS}
    assert legal_rows(state, [1, 5, EOS], []) == [{EOS}]


def test_a_grammar_that_leads_nowhere_allows_the_end() -> None:
    nowhere = compile_for(TOKENS, EOS, regex("ab[^ -~]"))
    assert legal_rows(GrammarState(nowhere, 0), [2], []) == [{EOS}]


def test_an_output_that_breaks_the_grammar_may_only_end() -> None:
    state = GrammarState(GRAMMAR, num_prompt_tokens=0)
    assert legal_rows(state, [0, 0], []) == [{EOS}]
    assert state.legal_block([0, 0, 1], [1]).tokens == []


def test_a_single_legal_token_stays_the_only_one() -> None:
    fixed = compile_for(TOKENS, EOS, {"type": "const_string", "value": "c"})
    assert legal_rows(GrammarState(fixed, 0), [], []) == [{5}]

from __future__ import annotations

import pytest
import xgrammar

from dspine_cluster.engine.forced_text import ForcedText, forced_text


def of(ebnf: str) -> ForcedText:
    return forced_text(xgrammar.Grammar.from_ebnf(ebnf).serialize_json())


@pytest.mark.parametrize("ebnf", ['root ::= "a" root', "root ::= root", 'root ::= "a" b\nb ::= "b" root'])
def test_a_grammar_without_a_finite_text_never_ends(ebnf: str) -> None:
    assert of(ebnf).never_ends


@pytest.mark.parametrize(
    "ebnf",
    ['root ::= "a" root | ""', 'root ::= [a-z]+ "."', 'root ::= x{3}\nx ::= "a"', 'root ::= root "a" | "b"'],
)
def test_a_grammar_with_a_finite_text_may_force_it(ebnf: str) -> None:
    forced = of(ebnf)
    assert not forced.never_ends
    assert forced.max_output_tokens > 10_000


def test_nothing_is_forced_where_a_way_never_ends() -> None:
    assert of('root ::= "x" | "b" loop\nloop ::= "a" loop') == ForcedText(
        never_ends=False, max_output_tokens=0
    )


def test_nothing_is_forced_where_few_rules_make_a_long_text() -> None:
    doubling = "\n".join(f"a{level + 1} ::= a{level} a{level}" for level in range(40))
    assert of(f'root ::= a40\na0 ::= "ab"\n{doubling}') == ForcedText(never_ends=False, max_output_tokens=0)


def test_the_more_each_level_of_recursion_leaves_to_be_said_the_sooner_forcing_ends() -> None:
    short, long = (of(f'root ::= "a" root "{"b" * count}" | "c"') for count in (10, 1000))
    assert 0 < long.max_output_tokens < short.max_output_tokens
    assert long.max_output_tokens == (1 << 18) // 1002


def test_a_long_text_beside_a_recursion_does_not_count_for_it() -> None:
    assert of(f'root ::= "{"x" * 2000}" list\nlist ::= "[" list? "]"').max_output_tokens == (1 << 18) // 2

from __future__ import annotations

import json

import pytest
import xgrammar

from dspine_cluster.api.structured.grammar_text import mended
from tests.api.structured.test_json_schemas import COMPILER


def accepts(schema: object, text: str) -> bool:
    grammar = mended(str(xgrammar.Grammar.from_json_schema(json.dumps(schema), any_whitespace=False)))
    matcher = xgrammar.GrammarMatcher(COMPILER.compile_grammar(grammar))
    return bool(matcher.accept_string(text) and matcher.is_completed())


@pytest.mark.parametrize(
    ("schema", "right", "wrong"),
    [
        ({"type": "string", "maxLength": 3}, '"a b"', '"a\tb"'),
        ({"type": "string", "minLength": 1}, '"ä"', '"\x01"'),
        ({"type": "string", "pattern": "[^😀]"}, '"a"', '"\x1f"'),
        ({"type": "string", "pattern": "[^😀]"}, '"😂"', '"\\"'),
        ({"type": "string"}, r'"\ud83d\ude00 \u00e4\n"', r'"\ud83d"'),
        ({"type": "string"}, '"\\\\ud83d"', r'"\ude00"'),
        ({"type": "number"}, "1.5e-99", "1e100"),
        ({"const": "[^a] é1"}, '"[^a] é1"', '"[^b]"'),
        (
            {"properties": {"ab": {"type": "null"}}, "additionalProperties": {"type": "integer"}},
            '{"ab": null, "a": 1, "b\\u0061": 2}',
            '{"\\u0061b": 1}',
        ),
    ],
)
def test_grammars_allow_only_what_readers_of_json_take(schema: object, right: str, wrong: str) -> None:
    assert accepts(schema, right)
    assert not accepts(schema, wrong)


def test_a_length_counts_characters_also_of_bytes_that_are_none() -> None:
    grammar = mended(str(xgrammar.Grammar.from_json_schema('{"type": "string", "maxLength": 3}')))
    matcher = xgrammar.GrammarMatcher(COMPILER.compile_grammar(grammar))
    assert [matcher.accept_token(byte) for byte in b'"\xed\xa0'] == [True, True, False]


def test_rules_that_nothing_leads_to_are_left_out() -> None:
    text = str(xgrammar.Grammar.from_json_schema('{"type": "integer"}'))
    assert "basic_string" in text
    assert "basic_string" not in mended(text)

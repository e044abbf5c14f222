"""Grammars as xgrammar writes them of JSON schemas, mended where they allow what the schema does not."""

from __future__ import annotations

import re

_PIECES = re.compile(r'"(?:[^"\\]|\\.)*"|\[(?:[^\]\\]|\\.)*\]')
"""Texts and classes of characters."""
_TWO_DIGITS = re.compile(r"(?<!\\)((?:\\\\)*)\\x([0-9a-fA-F]{2})")
_JSON_STRING = r"\0-\u001f\"\\"
"""What no JSON string holds as it is."""
_SURROGATES = r"\ud800-\udfff"
_HEX = "[A-Fa-f0-9]"
_ESCAPE = re.compile(r"^basic_escape ::= .*$", re.MULTILINE)
_WHOLE_ESCAPE = (
    r'basic_escape ::= (([\"\\/bfnrt]) | ("u" [0-9A-CEFa-cef] H H H) | ("u" [Dd] [0-7] H H) | '
    r'("u" [Dd] [89ABab] H H "\\" "u" [Dd] [C-Fc-f] H H))'
).replace("H", _HEX)
_EXPONENT = re.compile(r"(\[eE\] \w+ \w+)\{1, -1\}")
_OTHER_KEY = re.compile(r"^(\w+_addl_key\w* ::= .*)$", re.MULTILINE)
_ESCAPED = r' | ("\\" basic_escape basic_string_sub)'
_XML_VALUE = re.compile(r'(">") \w+ (\w+) \w+ ("</parameter>")')
_RULE = re.compile(r"^\w+ ::= ", re.MULTILINE)
_NAME = re.compile(r"\w+")
_ANY = r"[\0-\U0010ffff]"


def mended(grammar: str) -> str:
    """EBNF of JSON texts.

    - A code of two hexadecimal digits is written with four: xgrammar reads on as long as digits follow.
    - Strings with lengths or patterns hold no control characters, and none that is only half of one.
    - `\\u` escapes write whole characters, and exponents have two digits: others are no numbers to many readers.
    - Properties that the schema does not name do not come by escaped names of those that it does.
    """
    grammar = _TWO_DIGITS.sub(r"\1\\u00\2", grammar)
    grammar = _PIECES.sub(lambda piece: _printable(piece[0]), grammar)
    grammar = _ESCAPE.sub(lambda _: _WHOLE_ESCAPE, grammar)
    grammar = _EXPONENT.sub(r"\1{1, 2}", grammar)
    return _used(_OTHER_KEY.sub(lambda rule: rule[0].replace(_ESCAPED, ""), grammar))


def mended_xml(grammar: str) -> str:
    """EBNF of the parameters of a call in XML, with JSON texts inside. A value stands between line ends, which belong
    to the markup, and holds no markup where its length is bounded."""
    grammar = mended(grammar.replace(_ANY, rf"[^<{_SURROGATES}]"))
    return _XML_VALUE.sub(r'\1 "\\n" \2 "\\n" \3', grammar)


def _used(grammar: str) -> str:
    """The rules that `root` leads to: xgrammar writes those of any JSON, too, and requests may have many grammars."""
    bounds = [match.start() for match in _RULE.finditer(grammar)]
    texts = [grammar[start:end] for start, end in zip(bounds, [*bounds[1:], len(grammar)], strict=True)]
    rules = {text.partition(" ")[0]: text for text in texts}
    used = {"root"}
    left = ["root"]
    while left:
        found = set(_NAME.findall(rules[left.pop()])) & rules.keys() - used
        used |= found
        left += found
    return "".join(text for name, text in rules.items() if name in used)


def _printable(piece: str) -> str:
    if not piece.startswith("[^") or piece.startswith((rf"[^{_JSON_STRING}", "[^<")):
        return piece
    return f"[^{_JSON_STRING}{_SURROGATES}{piece[2:]}"

"""Texts as models write them, and ways to split them over rounds."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from hypothesis import strategies as st

from dspine_cluster.api.answering.answer_events import Event, Merged, merge
from dspine_cluster.api.answering.answer_parser import AnswerFormat, AnswerParser
from dspine_cluster.api.tool_calling.parameter_types import ParameterTypes
from dspine_cluster.types import FinishReason, RoundOutput

TYPES = ParameterTypes(
    {
        "find": {
            "properties": {
                "text": {"type": "string"},
                "limit": {"type": "integer"},
                "tags": {"type": "array"},
                "exact": {"type": "boolean"},
            }
        }
    }
)
JSON_ARGUMENTS = '{"text": "a \\"b\\" </tool_call> é漢", "limit": 3}'
JSON_CALL = f'<tool_call>\n{{"name": "find", "arguments": {JSON_ARGUMENTS}}}\n</tool_call>'
OTHER_JSON_CALL = '<tool_call>{"arguments": {"tags": [{"x": "}"}]}, "name": "find"}</tool_call>'
XML_CALL = (
    '<tool_call>\n<function=find>\n<parameter=text>\nline "1"\n</parameter> 🙂\n\n</parameter>\n'
    '<parameter=tags>\n["a", {"b": 1}]\n</parameter>\n<parameter=exact>\nTrue\n</parameter>\n</function>\n</tool_call>'
)
EMPTY_XML_CALL = "<tool_call><function=stop></function></tool_call>"
_MARKUP = (
    "<think>", "</think>", "<tool_call>", "</tool_call>", "<function=find>", "</function>", "<parameter=text>",
    "<parameter=limit>", "</parameter>", '{"name": "find", "arguments": ', '{"name": "", "arguments": {}}', "{", "}",
    '"', "\\", "[1, 2]", "\n", "\n\n", " ", "<", "=", "true",
)  # fmt: skip
_WORDS = ("text", "é", "漢字", "🙂", "a < b", "x")

texts: st.SearchStrategy[str] = st.builds(
    lambda pieces, cut: "".join(pieces)[: -cut or None],
    st.lists(
        st.sampled_from((JSON_CALL, OTHER_JSON_CALL, XML_CALL, EMPTY_XML_CALL, *_MARKUP, *_WORDS))
        | st.text(max_size=4),
        max_size=10,
    ),
    st.integers(0, 30),
)
"""Whole and broken markup in any order, cut off anywhere."""


def splits(text: str) -> st.SearchStrategy[list[str]]:
    """`text` in pieces, some of them empty."""
    return st.lists(st.integers(0, len(text)), max_size=8).map(lambda places: _split(text, sorted(places)))


def two_pieces(text: str) -> Iterator[list[str]]:
    """`text` split at every place."""
    return (_split(text, [place]) for place in range(len(text) + 1))


def read(
    pieces: Iterable[str], answer_format: AnswerFormat, finish_reason: FinishReason = FinishReason.STOP
) -> tuple[Merged, AnswerParser]:
    """The answer whose rounds bring `pieces`, one token each."""
    parser = AnswerParser(answer_format)
    events: list[Event] = []
    for piece in pieces:
        events += parser.push(RoundOutput((1,), piece))
    events += parser.push(RoundOutput((), "", finish_reason=finish_reason))
    return merge(events), parser


def _split(text: str, places: list[int]) -> list[str]:
    return [text[start:end] for start, end in zip([0, *places], [*places, len(text)], strict=True)]

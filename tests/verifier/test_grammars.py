from __future__ import annotations

import asyncio
import threading

import pytest

from dspine_cluster.engine.grammar_state import CompiledGrammar
from dspine_cluster.errors import EngineStoppedError, OverloadedError, RequestError
from dspine_cluster.token_bytes import TokenBytes
from dspine_cluster.types import OutputGrammar
from dspine_cluster.verifier.grammars import Grammars
from tests.engine.grammar_cases import Format, regex, structural_tag
from tests.verifier.harness import EOS, MASK, VOCAB_SIZE, byte_tokenizer


def make_grammars(**settings: float) -> Grammars:
    return Grammars(
        TokenBytes(byte_tokenizer()),
        eos_token_ids=[EOS],
        mask_token_id=MASK,
        vocab_size=VOCAB_SIZE,
        **settings,  # type: ignore[arg-type]
    )


def grammar(content: Format) -> OutputGrammar:
    return OutputGrammar(structural_tag(content), "structured_outputs")


async def test_a_grammar_is_compiled_once() -> None:
    grammars = make_grammars()
    first, second = await asyncio.gather(*(grammars.compile(grammar(regex("a+"))) for _ in range(2)))
    assert first is second
    assert await grammars.compile(grammar(regex("a+"))) is first
    assert await grammars.compile(grammar(regex("b+"))) is not first


async def test_the_cache_is_bounded() -> None:
    grammars = make_grammars(max_cached_bytes=0)
    first = await grammars.compile(grammar(regex("a+")))
    assert await grammars.compile(grammar(regex("a+"))) is not first


@pytest.mark.parametrize(
    ("content", "cause"),
    [
        (regex("(a"), "parenthesis is not closed"),
        (regex("a(?=b)"), "Lookahead is not supported"),
        ({"type": "grammar", "grammar": "root ::= x"}, '"x" is not defined'),
        ({"type": "grammar", "grammar": 'root ::= "a" root'}, "endless"),
        ({"type": "nonsense"}, "nonsense"),
        (regex("[^\\x00-\\U0010ffff]"), "no output is possible"),
        ({"type": "const_string", "value": "a" * (1 << 17)}, "too large"),
    ],
)
async def test_what_cannot_be_compiled_is_refused_by_cause(content: Format, cause: str) -> None:
    with pytest.raises(RequestError, match=cause) as caught:
        await make_grammars().compile(grammar(content))
    assert caught.value.param == "structured_outputs"


async def test_a_slow_one_is_refused_and_others_that_wait_are_told_to_come_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    grammars = make_grammars(max_compile_s=0.2)
    is_over = threading.Event()
    compiled = Grammars._compiled

    def slow(self: Grammars, text: str) -> CompiledGrammar:
        is_over.wait(20)
        return compiled(self, text)

    monkeypatch.setattr(Grammars, "_compiled", slow)
    attempts = [grammars.compile(grammar(regex(f"a{{{count}}}"))) for count in (1, 2, 3)]
    *slow_ones, waiting = await asyncio.gather(*attempts, return_exceptions=True)
    assert [type(error) for error in slow_ones] == [RequestError, RequestError]
    assert "longer than 0.2 s" in str(slow_ones[0])
    assert isinstance(waiting, OverloadedError)
    is_over.set()


async def test_nothing_is_taken_after_the_end() -> None:
    grammars = make_grammars()
    grammars.stop()
    with pytest.raises(EngineStoppedError):
        await grammars.compile(grammar(regex("a")))

"""Grammars compiled for small vocabularies."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import xgrammar

from dspine_cluster.engine.grammar_state import CompiledGrammar

Format = dict[str, Any]


def structural_tag(content: Format) -> str:
    return json.dumps({"type": "structural_tag", "format": content})


def regex(pattern: str) -> Format:
    return {"type": "regex", "pattern": pattern}


def compile_for(tokens: Sequence[bytes], eos: int, content: Format) -> CompiledGrammar:
    """`content` is of xgrammar's structural tags; `tokens` have the texts of the vocabulary."""
    info = xgrammar.TokenizerInfo(
        list(tokens), xgrammar.VocabType.RAW, vocab_size=len(tokens), stop_token_ids=[eos]
    )
    compiler = xgrammar.GrammarCompiler(info, max_threads=1, cache_enabled=False)
    compiled = compiler.compile_structural_tag(structural_tag(content))
    return CompiledGrammar(compiled, frozenset(info.special_token_ids), len(tokens), 1000)

"""Compiles the grammars of requests for the target's tokens: beside the event loop, within bounds, once for all."""

from __future__ import annotations

import asyncio
import os
import threading
from collections import OrderedDict
from collections.abc import Collection
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TYPE_CHECKING

from dspine_cluster.engine.forced_text import forced_text
from dspine_cluster.engine.grammar_state import CompiledGrammar, num_words
from dspine_cluster.errors import EngineStoppedError, OverloadedError, RequestError
from dspine_cluster.token_bytes import TokenBytes
from dspine_cluster.types import OutputGrammar

if TYPE_CHECKING:
    import xgrammar

_MAX_CHARS = 1 << 17
"""Of a grammar's text. A thousand optional properties fit, and compile in about two seconds of the 10 allowed."""
_MAX_AT_A_TIME = 2
_MAX_COMPILE_S = 10.0
_MAX_CACHED_BYTES = 256 << 20


class Grammars:
    """Compiled grammars by their text, those used last kept. Any event loop may ask."""

    def __init__(
        self,
        token_bytes: TokenBytes,
        *,
        eos_token_ids: Collection[int],
        mask_token_id: int | None,
        vocab_size: int,
        max_compile_s: float = _MAX_COMPILE_S,
        max_cached_bytes: int = _MAX_CACHED_BYTES,
    ) -> None:
        self._token_bytes = token_bytes
        self._eos_token_ids = sorted(eos_token_ids)
        self._mask_token_id = mask_token_id
        self._vocab_size = vocab_size
        self._max_compile_s = max_compile_s
        self._max_cached_bytes = max_cached_bytes
        self._workers = ThreadPoolExecutor(_MAX_AT_A_TIME, thread_name_prefix="grammar")
        self._lock = threading.Lock()
        self._making = threading.Lock()
        self._compiler: xgrammar.GrammarCompiler | None = None
        self._textless_ids = frozenset[int]()
        self._cached: OrderedDict[str, CompiledGrammar] = OrderedDict()
        self._in_work: dict[str, Future[CompiledGrammar]] = {}

    async def compile(self, grammar: OutputGrammar) -> CompiledGrammar:
        """The compiled grammar, from the cache if it is there.

        Raises:
            EngineStoppedError: `stop` was called.
            RequestError: it cannot be compiled, is too large, takes too long or allows nothing.
            OverloadedError: others that are being compiled have left no time for it.
        """
        if len(grammar.structural_tag) > _MAX_CHARS:
            raise _refused(grammar, "it is too large")
        future = self._start(grammar.structural_tag)
        if isinstance(future, CompiledGrammar):
            return future
        try:
            async with asyncio.timeout(self._max_compile_s):
                # Shielded: others may wait for the same one, and it is of use later.
                return await asyncio.shield(asyncio.wrap_future(future))
        except TimeoutError as error:
            if not future.running() and not future.done():
                raise OverloadedError("too many grammars are being compiled") from error
            raise _refused(
                grammar, f"it takes longer than {self._max_compile_s:g} s to compile; simplify it"
            ) from error
        except _GrammarError as error:
            raise _refused(grammar, str(error)) from error

    def stop(self) -> None:
        """Take no more."""
        self._workers.shutdown(wait=False)

    def _start(self, text: str) -> Future[CompiledGrammar] | CompiledGrammar:
        with self._lock:
            if text in self._cached:
                self._cached.move_to_end(text)
                return self._cached[text]
            future = self._in_work.get(text)
            if future is None:
                try:
                    future = self._workers.submit(self._compile, text)
                except RuntimeError as error:
                    raise EngineStoppedError("the engine loop has ended") from error
                self._in_work[text] = future
            return future

    def _compile(self, text: str) -> CompiledGrammar:
        """In a worker thread; xgrammar lets others run meanwhile."""
        try:
            compiled = self._compiled(text)
        except BaseException:
            with self._lock:
                del self._in_work[text]
            raise
        with self._lock:
            del self._in_work[text]
            self._cached[text] = compiled
            num_bytes = sum(kept.compiled.memory_size_bytes for kept in self._cached.values())
            while num_bytes > self._max_cached_bytes:
                _, dropped = self._cached.popitem(last=False)
                num_bytes -= dropped.compiled.memory_size_bytes
        return compiled

    def _compiled(self, text: str) -> CompiledGrammar:
        import torch
        import xgrammar  # when the first grammar comes: it takes seconds

        with self._making:
            if self._compiler is None:
                self._compiler = self._make_compiler()
        try:
            forced = forced_text(xgrammar.Grammar.from_structural_tag(text).serialize_json())
            if forced.never_ends:
                raise _GrammarError("every output under it is endless")
            compiled = self._compiler.compile_structural_tag(text)
        except (RuntimeError, ValueError) as error:  # all of xgrammar's own are one of these
            raise _GrammarError(str(error).partition(": ")[2].strip() or str(error)) from error
        mask = torch.zeros(1, num_words(self._vocab_size), dtype=torch.int32)
        xgrammar.GrammarMatcher(compiled).fill_next_token_bitmask(mask)
        if not mask.any():
            raise _GrammarError("no output is possible under it")
        return CompiledGrammar(compiled, self._textless_ids, self._vocab_size, forced.max_output_tokens)

    def _make_compiler(self) -> xgrammar.GrammarCompiler:
        import xgrammar

        # Special tokens and the drafter's mask have no text: no grammar can ask for them.
        vocabulary = [
            b"" if token == self._mask_token_id else self._token_bytes.of(token, skip_special_tokens=True)
            for token in range(self._vocab_size)
        ]
        info = xgrammar.TokenizerInfo(
            vocabulary,
            xgrammar.VocabType.RAW,
            vocab_size=self._vocab_size,
            stop_token_ids=self._eos_token_ids,
        )
        self._textless_ids = frozenset(info.special_token_ids)
        max_threads = min(4, max(1, (os.cpu_count() or 1) // 2))
        return xgrammar.GrammarCompiler(info, max_threads=max_threads, cache_enabled=False)


class _GrammarError(Exception):
    """A grammar cannot be compiled."""


def _refused(grammar: OutputGrammar, reason: str) -> RequestError:
    return RequestError(
        f"{grammar.param}: no output can be promised by this grammar: {reason}",
        param=grammar.param,
        code="invalid_grammar",
    )

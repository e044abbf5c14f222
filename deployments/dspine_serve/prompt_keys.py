"""The page keys by which placement finds what of a prompt is cached where."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass

from dspine_cluster.core.cluster_records import NO_DRAFTER, Fingerprints
from dspine_cluster.core.page_hash import PageKey, draft_root, page_keys, verifier_root
from dspine_cluster.types import GenerateRequest

_MAX_INLINE_TOKENS = 4096
"""More are hashed in a thread, so that the streams of others go on: 1 us a token."""


@dataclass(frozen=True, slots=True)
class PromptKeys:
    """Keys of the full pages of a request's tokens."""

    verifier: Sequence[PageKey] = ()
    draft: Sequence[PageKey] = ()


@dataclass(frozen=True, slots=True)
class KeyMaker:
    """Makes the keys that replicas with these models and this dtype have."""

    models: Fingerprints
    dtype: str
    prefix_cache: bool = True
    """Without it nothing is ever cached."""

    async def keys_of(self, request: GenerateRequest) -> PromptKeys:
        """The keys of the prompt and of the output that is forced."""
        if not self.prefix_cache:
            return PromptKeys()
        if len(request.prompt_ids) + len(request.forced_output_ids) <= _MAX_INLINE_TOKENS:
            return self._make(request)
        return await asyncio.to_thread(self._make, request)

    def _make(self, request: GenerateRequest) -> PromptKeys:
        tokens = (*request.prompt_ids, *request.forced_output_ids)
        target, drafter, salt = self.models.target, self.models.drafter, request.cache_salt
        return PromptKeys(
            verifier=page_keys(tokens, verifier_root(target, self.dtype, salt)),
            draft=page_keys(tokens, draft_root(target, drafter, self.dtype, salt))
            if drafter != NO_DRAFTER
            else (),
        )

"""How busy a verifier loop is, as placement wants to know it."""

from __future__ import annotations

from collections.abc import Callable

from dspine_cluster.core.cache_lifetime import CacheLifetime
from dspine_cluster.core.cluster_records import ReplicaLoad, coarse
from dspine_cluster.core.prefill_rate import PrefillRate
from dspine_cluster.verifier.streams import Streams


class LoadMeter:
    """The loop's thread calls every method."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._prefill_rate = PrefillRate()
        self._page_lifetime = CacheLifetime()
        self._checkpoint_lifetime = CacheLifetime()

    def note_pass(self, num_prefill_tokens: int, taken_s: float) -> None:
        """A pass with so many prompt tokens has ended."""
        self._prefill_rate.note(num_prefill_tokens, taken_s)

    def load(self, streams: Streams) -> ReplicaLoad:
        """The load now."""
        index, now_s = streams.prefix_cache.index, self._clock()
        self._page_lifetime.note(now_s, index.num_evicted_pages, index.num_cached_pages)
        self._checkpoint_lifetime.note(now_s, index.num_evicted_checkpoints, index.num_checkpoints)
        return ReplicaLoad(
            running_requests=len(streams.running),
            waiting_requests=len(streams.waiting),
            queued_tokens=streams.queued_tokens,
            prefill_tokens_per_s=coarse(self._prefill_rate.tokens_per_s),
            cache_lifetime_s=coarse(min(self._page_lifetime.seconds, self._checkpoint_lifetime.seconds)),
        )

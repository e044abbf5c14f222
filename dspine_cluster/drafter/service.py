"""A drafter replica: the loop behind its endpoints."""

from __future__ import annotations

import secrets
import time
from math import inf

import torch

from dspine_cluster.config import DrafterServiceConfig
from dspine_cluster.core.autoscaling_report import encode_drafter
from dspine_cluster.core.autoscaling_stats import DrafterStats
from dspine_cluster.core.busy_meter import BusyMeter
from dspine_cluster.core.cache_lifetime import CacheLifetime
from dspine_cluster.core.cluster_records import DrafterNews, ReplicaLoad, ReplicaReport, coarse
from dspine_cluster.drafter.loading import load_drafter_replica
from dspine_cluster.drafter.loop import DrafterLoop
from dspine_cluster.drafter.runner import DraftRunner
from dspine_cluster.engine.draft_pool import DraftPool
from dspine_cluster.engine.memory import free_bytes
from dspine_cluster.engine.pace_file import read_pace
from dspine_cluster.errors import ConfigError
from dspine_cluster.models.drafter import Drafter
from dspine_cluster.transport.messages import Hello
from dspine_cluster.transport.socket import Listener, parse_endpoint
from dspine_cluster.types import PAGE_TOKENS

_NEWS_PERIOD_S = 1.0


class DrafterService:
    """Serves one drafter. Methods may be called from any thread."""

    def __init__(self, config: DrafterServiceConfig, drafter: Drafter, hello: Hello) -> None:
        """Size the pool and warm up.

        Raises:
            ConfigError: the pool would not hold one request's context.
        """
        self.hello = hello
        self._config = config
        runner = DraftRunner(
            drafter,
            num_pool_pages(config, drafter),
            random_seed=secrets.randbits(63),
            pace=read_pace(config.paced_by),
        )
        runner.warm_up()
        self._loop = DrafterLoop(
            runner,
            max_context_tokens=config.max_context_tokens,
            max_batch_blocks=config.max_batch_blocks,
            max_queued_blocks=config.max_queued_blocks,
        )
        self._listeners: list[Listener] = []
        self._cache_lifetime = CacheLifetime()
        self._busy = BusyMeter(time.monotonic())
        self._told = DrafterNews()
        self._told_at_s = -inf

    @classmethod
    def load(cls, config: DrafterServiceConfig) -> DrafterService:
        """The service for the models that `config` names.

        Raises:
            ConfigError, CheckpointError, MismatchError: they cannot be served as configured.
        """
        return cls(config, *load_drafter_replica(config))

    @property
    def endpoints(self) -> list[str]:
        """Where verifiers can connect now, with the ports that were chosen."""
        return [str(listener.endpoint) for listener in self._listeners]

    def start(self) -> None:
        """Start the loop, then listen.

        Raises:
            ChannelError: an endpoint is taken or not allowed; nothing runs then.
            ConfigError: an endpoint or the secret is malformed; nothing runs then.
        """
        self._loop.start()
        try:
            for text in self._config.endpoints:
                listener = Listener(
                    parse_endpoint(text), self.hello, self._config.secret.encode(), self._loop.add_channel
                )
                self._listeners.append(listener)
        except Exception:
            self.stop()
            raise

    def stop(self) -> None:
        """Stop listening, then end the loop and all channels."""
        for listener in self._listeners:
            listener.close()
        self._listeners.clear()
        self._loop.stop()

    def check_health(self) -> None:
        """Raises EngineStoppedError if the loop has ended or no longer advances."""
        self._loop.check_health(self._config.stall_s)

    def take_report(self) -> ReplicaReport:
        """How busy it is, and what has changed since the last call.

        Raises:
            EngineStoppedError: the loop does not run.
        """
        self._loop.check_health(inf)
        contexts = self._loop.contexts
        self._cache_lifetime.note(time.monotonic(), contexts.num_evictions, contexts.num_cached_pages)
        load = ReplicaLoad(
            running_requests=len(contexts), cache_lifetime_s=coarse(self._cache_lifetime.seconds)
        )
        added, removed = contexts.prefix_events.take()
        return ReplicaReport(load, frozenset(added), frozenset(removed), news=self._news())

    def _news(self) -> DrafterNews | None:
        """What has changed, unless something was told within the last second."""
        now_s = time.monotonic()
        if now_s - self._told_at_s < _NEWS_PERIOD_S:
            return None
        news = DrafterNews(tuple(self.stats().items()))
        if news == self._told:
            return None
        self._told, self._told_at_s = news, now_s
        return news

    def stats(self) -> dict[str, float]:
        """Present figures, and totals since the start, by metric name."""
        counters, contexts = self._loop.counters, self._loop.contexts
        return {
            "drafter_channels": self._loop.num_channels,
            "drafter_requests": len(contexts),
            "drafter_page_usage_ratio": contexts.page_usage_ratio,
            "drafter_cached_pages": contexts.num_cached_pages,
            "drafter_evicted_pages_total": contexts.num_evictions,
            "drafter_cached_tokens_total": counters.num_cached_tokens,
            "drafter_batches_total": counters.num_batches,
            "drafter_blocks_total": counters.num_blocks,
            "drafter_features_total": counters.num_features,
            "drafter_needs_total": counters.num_needs,
            "drafter_busy_total": counters.num_busy,
            "drafter_draft_seconds_total": counters.draft_s,
            "drafter_ingest_seconds_total": counters.ingest_s,
        }

    def autoscaling_stats(self) -> dict[str, float]:
        """What autoscaling goes by, as `core.autoscaling_report` has it."""
        counters = self._loop.counters
        busy_ratio = self._busy.ratio(time.monotonic(), counters.draft_s + counters.ingest_s)
        return encode_drafter(DrafterStats("", age_s=0.0, busy_ratio=busy_ratio))


def num_pool_pages(config: DrafterServiceConfig, drafter: Drafter) -> int:
    """Pages of the context pool: as configured, or as many as fit into the configured share of the free memory.

    Raises:
        ConfigError: they would not hold one request's context.
    """
    if config.pool_tokens is not None:
        num_pages = config.pool_tokens // PAGE_TOKENS
    else:
        page_bytes = DraftPool.page_bytes(drafter.config, drafter.lm_head.dtype)
        share_bytes = free_bytes(torch.device(config.device)) * config.memory_fraction
        num_pages = int(share_bytes) // page_bytes
    if num_pages * PAGE_TOKENS < config.max_context_tokens + PAGE_TOKENS:
        raise ConfigError(
            f"the draft context pool would hold {num_pages * PAGE_TOKENS} tokens, too few for max_context_tokens "
            f"{config.max_context_tokens} and a page; lower that, or raise memory_fraction or pool_tokens"
        )
    return num_pages

"""How long placement takes in a large cluster."""

from __future__ import annotations

from random import Random
from statistics import median, quantiles
from time import perf_counter

from dspine_cluster.core.cluster_records import (
    ClusterEvent,
    ClusterUpdates,
    Cursor,
    DrafterRecord,
    ReplicaDelta,
    ReplicaLoad,
    VerifierRecord,
)
from dspine_cluster.core.page_hash import page_keys, root_key
from dspine_cluster.core.placement import PlacementRequest, Placer
from dspine_cluster.types import PAGE_TOKENS

_SYSTEM_TOKENS = 1024
_PROMPT_TOKENS = 4096
_MAX_OPEN = 500


def measure_placement(num_verifiers: int = 1000, num_requests: int = 4000) -> dict[str, float]:
    """Times of `choose` for prompts of 4,096 tokens, a quarter of them a system prompt that every verifier has cached;
    each conversation is cached on one verifier and one drafter, and a node has four verifiers and two drafters."""
    random = Random(0)
    roots = root_key("verifier"), root_key("drafter")
    system = list(range(_SYSTEM_TOKENS))
    prompts = [
        [page_keys([*system, *range(start, start + _PROMPT_TOKENS - _SYSTEM_TOKENS)], root) for root in roots]
        for start in random.sample(range(10_000, 2**30), num_requests)
    ]
    placer = Placer(random=random)
    placer.apply(ClusterUpdates(Cursor("bench", 1), tuple(_events(num_verifiers, prompts, random))))
    times_us = []
    for number, (keys, draft_keys) in enumerate(prompts):
        request = PlacementRequest(str(number), _PROMPT_TOKENS, keys, draft_keys)
        started_s = perf_counter()
        placer.choose(request)
        times_us.append(1e6 * (perf_counter() - started_s))
        placer.release(str(number - _MAX_OPEN))
    return {
        "num_verifiers": num_verifiers,
        "num_drafters": num_verifiers // 2,
        "prompt_tokens": _PROMPT_TOKENS,
        "p50_us": median(times_us),
        "p99_us": quantiles(times_us, n=100)[98],
    }


def _events(num_verifiers: int, prompts: list[list[list[bytes]]], random: Random) -> list[ClusterEvent]:
    events: list[ClusterEvent] = []
    drafts: list[list[list[bytes]]] = [[] for _ in range(num_verifiers // 2)]
    for number in range(num_verifiers):
        load = ReplicaLoad(random.randrange(16), random.randrange(4), random.randrange(8000))
        events.append(VerifierRecord(f"verifier-{number}", f"node-{number // 4}", "1"))
        cached = prompts[number::num_verifiers]
        events.append(_delta(f"verifier-{number}", load, [keys for keys, _ in cached]))
        drafts[number // 2] += [keys for _, keys in cached]
    for number, cached_drafts in enumerate(drafts):
        events.append(DrafterRecord(f"drafter-{number}", f"node-{number // 2}", ("local",), ("remote",), "1"))
        events.append(_delta(f"drafter-{number}", ReplicaLoad(), cached_drafts))
    return events


def _delta(name: str, load: ReplicaLoad, cached: list[list[bytes]]) -> ReplicaDelta:
    """Restorable prefixes: the system prompt, and the last message boundaries of each conversation."""
    ends = [_SYSTEM_TOKENS // PAGE_TOKENS, -40, -8]
    added = dict.fromkeys(keys[end - 1] for keys in cached for end in ends)
    return ReplicaDelta(name, "1", 1, load, tuple(added), is_snapshot=True)

"""What the replicas of a cluster say of themselves."""

from __future__ import annotations

from collections import Counter

from dspine_serve.local_cluster import LocalCluster


def total(cluster: LocalCluster, deployment: str) -> Counter[str]:
    """Figures of a deployment, added up over its replicas."""
    figures: Counter[str] = Counter()
    for stats in cluster.stats(deployment):
        figures.update(stats)
    return figures


def held(cluster: LocalCluster) -> dict[str, float]:
    """What requests hold somewhere: slots, pages, reservations."""
    verifiers, drafters, ingresses = (total(cluster, name) for name in ("Verifier", "Drafter", "Ingress"))
    figures = {
        "running requests": verifiers["running_requests"],
        "waiting requests": verifiers["waiting_requests"],
        "verifier pages": verifiers["page_usage_ratio"],
        "drafter requests": drafters["drafter_requests"],
        "drafter pages": drafters["drafter_page_usage_ratio"],
        "open streams": ingresses["open_streams"],
        "reservations": ingresses["reservations"],
        "calls to verifiers": sum(cluster.ongoing_requests("Verifier").values()),
        "calls to ingresses": sum(cluster.ongoing_requests("Ingress").values()),
    }
    return {name: value for name, value in figures.items() if value}

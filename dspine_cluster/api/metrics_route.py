"""`/metrics`, in Prometheus' text format."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping

from fastapi import FastAPI
from fastapi.responses import Response

from dspine_cluster.core.cluster_status import ClusterStatus
from dspine_cluster.observability.exposition import CONTENT_TYPE, ReplicaFigures, exposition

AUTOSCALER_ID = "autoscaler"
"""What stands for a replica where autoscaling tells something."""


def add_metrics_route(app: FastAPI, replicas: Callable[[], Iterable[ReplicaFigures]]) -> None:
    """What `replicas` tell at the time."""

    @app.get("/metrics", response_class=Response, responses={200: {"content": {"text/plain": {}}}})
    async def metrics() -> Response:
        return Response(exposition(replicas()), headers={"Content-Type": CONTENT_TYPE})


def cluster_figures(
    own_id: str, model: str, own: Mapping[str, float], status: ClusterStatus, autoscaling: Mapping[str, float]
) -> Iterator[ReplicaFigures]:
    """What the ingress `own_id` counts itself, and what it has heard of verifiers, drafters and autoscaling."""
    replicas = {"verifier_replicas": len(status.verifiers), "drafter_replicas": len(status.drafters)}
    yield ReplicaFigures(own_id, model, {**own, **replicas})
    if autoscaling:
        yield ReplicaFigures(AUTOSCALER_ID, model, autoscaling)
    for verifier in status.verifiers:
        yield ReplicaFigures(verifier.record.replica_id, model, dict(verifier.metrics))
    for drafter in status.drafters:
        yield ReplicaFigures(drafter.record.replica_id, model, dict(drafter.metrics))

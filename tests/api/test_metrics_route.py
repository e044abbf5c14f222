from __future__ import annotations

from fastapi import FastAPI
from prometheus_client.parser import text_string_to_metric_families
from starlette.testclient import TestClient

from dspine_cluster.api.metrics_route import add_metrics_route, cluster_figures
from dspine_cluster.core.cluster_records import DrafterRecord, ReplicaLoad, VerifierRecord
from dspine_cluster.core.cluster_status import ClusterStatus, DrafterStatus, VerifierStatus
from dspine_cluster.core.verifier_figures import VerifierFigures

NOTHING = VerifierFigures()
STATUS = ClusterStatus(
    tuple(
        VerifierStatus(
            VerifierRecord(name, "n", "e"),
            ReplicaLoad(),
            0.0,
            {},
            NOTHING,
            NOTHING,
            1.0,
            (("rounds_total", rounds),),
        )
        for name, rounds in (("v1", 3.0), ("v2", 4.0))
    ),
    (DrafterStatus(DrafterRecord("d", "n", (), (), "e"), ReplicaLoad(), (("drafter_blocks_total", 5.0),)),),
)
AUTOSCALING = {"autoscaling_borne_tokens_per_s": 9.0}


def test_one_page_tells_of_the_whole_application() -> None:
    app = FastAPI()
    add_metrics_route(app, lambda: cluster_figures("i", "small", {"open_requests": 2}, STATUS, AUTOSCALING))
    answer = TestClient(app).get("/metrics")
    assert answer.headers["content-type"].startswith("text/plain; version=")
    samples = [s for family in text_string_to_metric_families(answer.text) for s in family.samples]
    assert {sample.labels["model"] for sample in samples} == {"small"}
    assert {(sample.name, sample.labels["replica"]): sample.value for sample in samples} == {
        ("dspine_autoscaling_borne_tokens_per_s", "autoscaler"): 9.0,
        ("dspine_rounds_total", "v1"): 3.0,
        ("dspine_rounds_total", "v2"): 4.0,
        ("dspine_drafter_blocks_total", "d"): 5.0,
        ("dspine_open_requests", "i"): 2.0,
        ("dspine_verifier_replicas", "i"): 2.0,
        ("dspine_drafter_replicas", "i"): 1.0,
    }

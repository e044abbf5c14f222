from __future__ import annotations

from fastapi import FastAPI
from starlette.testclient import TestClient

from dspine_cluster.api.status_routes import StatusBody, add_status_routes
from dspine_cluster.core.cluster_records import DrafterRecord, ReplicaLoad, VerifierRecord
from dspine_cluster.core.cluster_status import ClusterStatus, DrafterStatus, VerifierStatus
from dspine_cluster.core.verifier_figures import VerifierFigures


def verifier(name: str, tokens: int, rounds: int) -> VerifierStatus:
    figures = VerifierFigures(rounds=rounds, committed_tokens=tokens)
    return VerifierStatus(
        VerifierRecord(name, "n", "e"), ReplicaLoad(2, 1), 0.5, {"d": 2}, figures, figures, 10.0
    )


def answer(status: ClusterStatus) -> StatusBody:
    app = FastAPI()
    add_status_routes(app, "small", lambda: status)
    return StatusBody.model_validate(TestClient(app).get("/dspine/status").json())


def test_the_whole_is_the_sum_of_its_verifiers() -> None:
    body = answer(ClusterStatus((verifier("a", 30, 10), verifier("b", 10, 10)), ()))
    assert (body.running_requests, body.waiting_requests, body.tokens_per_s) == (4, 2, 4.0)
    assert body.recent.acceptance_length == 2.0
    assert [v.recent.acceptance_length for v in body.verifiers] == [3.0, 1.0]


def test_replicas_and_pairs_are_named() -> None:
    drafter = DrafterStatus(DrafterRecord("d", "n", (), (), "e"), ReplicaLoad(4))
    body = answer(ClusterStatus((verifier("a", 3, 1),), (drafter,)))
    assert [(pair.drafter, pair.attached_requests) for pair in body.verifiers[0].drafters] == [("d", 2)]
    assert [(d.id, d.requests) for d in body.drafters] == [("d", 4)]


def test_an_empty_cluster_has_no_ratios() -> None:
    body = answer(ClusterStatus())
    assert body.recent.acceptance_length is None
    assert not body.verifiers
    assert not body.drafters

"""What the cluster does, as JSON: for `dspine status` and for the page."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from fastapi import FastAPI
from pydantic import BaseModel

from dspine_cluster.core.cluster_status import WINDOW_S, ClusterStatus, VerifierStatus
from dspine_cluster.core.verifier_figures import VerifierFigures

STATUS_PATH = "/dspine/status"


class FiguresBody(BaseModel):
    """Figures of rounds; null where nothing was done that they could be made from."""

    committed_tokens: int
    rounds: int
    acceptance_length: float | None
    """Committed tokens a round; plain decoding has 1."""
    verify_length: float | None
    """Proposals checked a drafted round."""
    cached_ratio: float | None
    """Part of the prompt tokens that was found in the cache."""
    acceptance_by_position: list[float | None]
    """Part of the checked proposals that was accepted, by position in the block from 1 on."""
    verify_length_shares: list[float]
    """Part of the drafted rounds, by verify length from 0 on."""


class PairBody(BaseModel):
    drafter: str
    """Its id; its endpoint while nothing else is known of it."""
    attached_requests: int


class VerifierBody(BaseModel):
    id: str
    node: str
    running_requests: int
    waiting_requests: int
    tokens_per_s: float
    page_usage_ratio: float
    """Pages of running requests, of all."""
    drafters: list[PairBody]
    """Those that it is connected to."""
    recent: FiguresBody


class DrafterBody(BaseModel):
    id: str
    node: str
    requests: int
    """Requests that it drafts for."""


class StatusBody(BaseModel):
    model: str
    window_s: float
    """What is recent was done within so many seconds."""
    running_requests: int
    waiting_requests: int
    tokens_per_s: float
    """Committed by rounds, recently."""
    recent: FiguresBody
    total: FiguresBody
    """Since the start of the verifiers that live."""
    verifiers: list[VerifierBody]
    drafters: list[DrafterBody]


def add_status_routes(app: FastAPI, model_name: str, status: Callable[[], ClusterStatus]) -> None:
    """`/dspine/status`."""

    @app.get(STATUS_PATH)
    async def cluster_status() -> StatusBody:
        return _body(model_name, status())


def _body(model_name: str, status: ClusterStatus) -> StatusBody:
    verifiers = status.verifiers
    return StatusBody(
        model=model_name,
        window_s=WINDOW_S,
        running_requests=sum(verifier.load.running_requests for verifier in verifiers),
        waiting_requests=sum(verifier.load.waiting_requests for verifier in verifiers),
        tokens_per_s=sum(verifier.tokens_per_s for verifier in verifiers),
        recent=_total(verifier.recent for verifier in verifiers),
        total=_total(verifier.total for verifier in verifiers),
        verifiers=[_verifier(verifier) for verifier in verifiers],
        drafters=[
            DrafterBody(
                id=drafter.record.replica_id,
                node=drafter.record.node_id,
                requests=drafter.load.running_requests,
            )
            for drafter in status.drafters
        ],
    )


def _verifier(verifier: VerifierStatus) -> VerifierBody:
    return VerifierBody(
        id=verifier.record.replica_id,
        node=verifier.record.node_id,
        running_requests=verifier.load.running_requests,
        waiting_requests=verifier.load.waiting_requests,
        tokens_per_s=verifier.tokens_per_s,
        page_usage_ratio=verifier.page_usage_ratio,
        drafters=[
            PairBody(drafter=name, attached_requests=count)
            for name, count in sorted(verifier.requests_by_drafter.items())
        ],
        recent=_figures(verifier.recent),
    )


def _total(figures: Iterable[VerifierFigures]) -> FiguresBody:
    return _figures(VerifierFigures.total(figures))


def _figures(figures: VerifierFigures) -> FiguresBody:
    return FiguresBody(
        committed_tokens=figures.committed_tokens,
        rounds=figures.rounds,
        acceptance_length=figures.acceptance_length,
        verify_length=figures.verify_length,
        cached_ratio=figures.cached_ratio,
        acceptance_by_position=list(figures.acceptance_by_position),
        verify_length_shares=list(figures.verify_length_shares),
    )

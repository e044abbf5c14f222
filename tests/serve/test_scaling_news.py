from __future__ import annotations

import asyncio
from queue import SimpleQueue

from dspine_cluster.core.autoscaling import AutoscalerState, Decision
from dspine_cluster.core.autoscaling_damping import Why
from dspine_cluster.observability.catalogue import METRIC_OF_FIGURE
from dspine_cluster.observability.series import parse_series
from dspine_serve.scaling_config import Role
from dspine_serve.scaling_news import ScalingNews, follow_news
from tests.serve.scaling_contexts import SETTINGS, context

Told = SimpleQueue[tuple[str, str, dict[str, float]]]


def decision(verifiers: int, drafters: int) -> Decision:
    state = AutoscalerState(tokens_per_s=500.0)
    return Decision(verifiers, drafters, "", state, Why.NEEDED, Why.RAISED)


def tell(news: ScalingNews, before: tuple[int, int], after: tuple[int, int]) -> None:
    shown = {role: context(role, {}, 1.0, target=1) for role in Role}
    numbers = [dict(zip(Role, counts, strict=True)) for counts in (before, after)]
    news.tell("small", shown, numbers[0], numbers[1], decision(*after), SETTINGS)


def test_changes_are_counted_and_numbers_told() -> None:
    told: Told = SimpleQueue()
    news = ScalingNews(lambda *args: told.put(args))
    tell(news, (1, 2), (4, 1))
    told.get(timeout=60)
    tell(news, (4, 1), (5, 1))
    app_name, model, figures = told.get(timeout=60)
    assert (app_name, model) == ("app", "small")
    assert figures["autoscaling_changes_total{deployment=verifier,direction=up}"] == 4
    assert figures["autoscaling_changes_total{deployment=drafter,direction=down}"] == 1
    assert figures["autoscaling_target_replicas{deployment=verifier}"] == 5
    assert figures["autoscaling_decisions_total{deployment=verifier,reason=as_needed}"] == 2
    assert figures["autoscaling_borne_tokens_per_s"] == 500.0


def test_all_figures_are_in_the_catalogue() -> None:
    told: Told = SimpleQueue()
    tell(ScalingNews(lambda *args: told.put(args)), (1, 2), (4, 1))
    for figure in told.get(timeout=60)[2]:
        name, labels = parse_series(figure)
        assert tuple(label for label, _ in labels) == METRIC_OF_FIGURE[name].labels


def test_telling_goes_on_after_a_failure() -> None:
    told: Told = SimpleQueue()
    is_broken = True

    def write(*args: object) -> None:
        nonlocal is_broken
        if is_broken:
            is_broken = False
            told.put(("broken", "", {}))
            raise OSError("Ray's store is down")
        told.put(args)  # type: ignore[arg-type]

    news = ScalingNews(write)
    tell(news, (1, 1), (1, 1))
    assert told.get(timeout=60)[0] == "broken"
    tell(news, (1, 1), (1, 1))
    assert told.get(timeout=60)[0] == "app"


def test_an_ingress_follows_and_keeps_what_it_knows_through_an_outage() -> None:
    answers = iter([{"x": 1.0}, None, {"x": 2.0}])
    seen: list[dict[str, float]] = []

    def read(app_name: str) -> dict[str, float]:
        found = next(answers, None)
        if found is None:
            raise OSError("Ray's store is down")
        return found

    async def follow() -> None:
        task = asyncio.create_task(follow_news("app", seen.append, read, period_s=0.0))
        while len(seen) < 2:
            await asyncio.sleep(0)
        task.cancel()

    asyncio.run(follow())
    assert seen == [{"x": 1.0}, {"x": 2.0}]

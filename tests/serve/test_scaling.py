from __future__ import annotations

import logging
import re
from collections.abc import Iterator
from dataclasses import replace
from math import inf, nan

import pytest
from ray.serve._private.common import DeploymentID
from ray.serve.config import AutoscalingConfig as ServeAutoscalingConfig
from ray.serve.config import AutoscalingContext

from dspine_cluster.core.autoscaling_config import ReplicaLimits
from dspine_cluster.errors import ConfigError
from dspine_serve.scaling import Reports, Scaler
from dspine_serve.scaling_config import Role
from dspine_serve.scaling_news import ScalingNews
from tests.serve.scaling_contexts import IDS, SETTINGS, context, drafter_figures, verifier_figures

CLOCK_AHEAD_S = 5000.0
"""Replicas' clocks beside the controller's."""


class Application:
    """Two verifiers and one drafter, whose numbers follow what is decided at once."""

    def __init__(
        self, overrides: dict[str, object] | None = None, roles: tuple[Role, ...] = tuple(Role)
    ) -> None:
        self.now_s = 100.0
        self.told_at_s = 0.0
        self.roles = roles
        self.counts = {Role.VERIFIER: 2, Role.DRAFTER: 1}
        self.num_calls = 0
        news = ScalingNews(lambda app_name, model, figures: None)
        self.scaler = Scaler(overrides or {}, clock=lambda: self.now_s, news=news)

    def contexts(
        self, tokens_per_s: float, length: float, busy: float
    ) -> dict[DeploymentID, AutoscalingContext]:
        at = self.told_at_s + CLOCK_AHEAD_S
        each = tokens_per_s / max(1, self.counts[Role.VERIFIER])
        figures = {Role.VERIFIER: verifier_figures(each, length), Role.DRAFTER: drafter_figures(busy)}
        return {
            IDS[role]: context(role, {f"{role}{i}": figures[role] for i in range(self.counts[role])}, at)
            for role in self.roles
        }

    def run(
        self,
        seconds: int,
        tokens_per_s: float,
        length: float = 4.0,
        busy: float = 0.3,
        is_silent: bool = False,
    ) -> None:
        for _ in range(seconds):
            self.now_s += 1.0
            if not is_silent:
                self.told_at_s = self.now_s
            decided = self.scaler.numbers(self.contexts(tokens_per_s, length, busy))
            assert decided.keys() == {IDS[role] for role in self.roles}
            self.counts |= {role: decided[IDS[role]] for role in self.roles}

    @property
    def numbers(self) -> tuple[int, int]:
        return self.counts[Role.VERIFIER], self.counts[Role.DRAFTER]


@pytest.fixture
def logged(caplog: pytest.LogCaptureFixture) -> Iterator[pytest.LogCaptureFixture]:
    logger = logging.getLogger("dspine_serve")
    propagate, logger.propagate = logger.propagate, False
    logger.addHandler(caplog.handler)
    caplog.set_level(logging.INFO, "dspine_serve")
    yield caplog
    logger.removeHandler(caplog.handler)
    logger.propagate = propagate


def test_more_demand_brings_more_verifiers_and_drafters_at_once() -> None:
    application = Application()
    application.run(5, 2000)
    assert application.numbers == (2, 1)
    application.run(40, 6000, busy=0.9)
    assert application.numbers[0] >= 5
    assert application.numbers[1] >= 2


def test_lower_acceptance_at_the_same_demand_brings_more_verifiers() -> None:
    application = Application()
    application.run(30, 2000)
    assert application.numbers[0] == 2
    application.run(5, 2000, length=2.0)
    assert application.numbers[0] == 4


def test_numbers_fall_once_demand_has_been_less_for_a_while() -> None:
    application = Application()
    application.run(40, 6000)
    high = application.numbers[0]
    application.run(30, 500)
    assert application.numbers[0] == high
    application.run(200, 500)
    assert application.numbers[0] == 1


def test_the_same_figures_told_again_and_again_are_old(logged: pytest.LogCaptureFixture) -> None:
    """However far the clocks of the nodes are apart."""
    application = Application()
    application.run(20, 2000)
    application.run(30, 9000, is_silent=True)
    before = application.numbers
    application.run(30, 90000, is_silent=True)
    assert application.numbers == before
    assert sum("hold" in record.message for record in logged.records) == 1


def test_changes_are_logged_with_their_reasons(logged: pytest.LogCaptureFixture) -> None:
    application = Application()
    application.run(30, 2000)
    logged.clear()
    application.run(5, 2000, length=2.0)
    [message] = [record.message for record in logged.records]
    assert "verifiers 2 -> 4" in message
    assert "acceptance length 2.00" in message


def test_what_draining_verifiers_still_have_is_no_fall_in_demand(logged: pytest.LogCaptureFixture) -> None:
    application = Application()
    application.run(60, 4000)
    assert application.numbers[0] == 4
    logged.clear()
    application.counts[Role.VERIFIER] = 3
    application.run(1, 3000)
    [asked] = re.findall(r"(\d+) tokens/s ahead", logged.text)
    assert int(asked) > 3950


def test_numbers_stay_while_no_verifier_tells_anything() -> None:
    application = Application()
    application.run(60, 4000)
    before = application.numbers
    contexts = application.contexts(0, 4.0, 0.3)
    contexts[IDS[Role.VERIFIER]] = context(Role.VERIFIER, {}, 1.0, target=before[0])
    for _ in range(200):
        application.now_s += 1.0
        assert application.scaler.numbers(contexts)[IDS[Role.VERIFIER]] == before[0]


def test_nothing_is_decided_between_two_periods() -> None:
    application = Application()
    contexts = application.contexts(1000, 4.0, 0.3)
    assert application.scaler.numbers(contexts)
    application.now_s += 0.1
    assert application.scaler.numbers(contexts) == {}


def test_verifiers_alone_go_by_their_own_figures() -> None:
    application = Application(roles=(Role.VERIFIER,))
    application.run(40, 6000)
    assert application.numbers[0] >= 5


def test_drafters_alone_go_by_their_own_time() -> None:
    application = Application(roles=(Role.DRAFTER,))
    application.run(5, 0, busy=0.95)
    assert application.numbers == (2, 4)
    application.run(200, 0, busy=0.05)
    assert application.numbers[1] == 1


def test_deployments_that_others_scale_are_left_alone() -> None:
    other = DeploymentID(name="Ingress", app_name="app")
    shown = context(Role.VERIFIER, {"v": verifier_figures(100)}, 1.0)
    shown.config = ServeAutoscalingConfig(max_replicas=3)
    assert Application().scaler.numbers({other: shown}) == {}


def test_settings_of_the_policy_outdo_those_of_the_application() -> None:
    application = Application({"verifiers": {"max_replicas": 3}})
    application.run(60, 9000)
    assert application.numbers[0] == 3


@pytest.mark.parametrize("broken", ["dspine_committed_tokens_per_s", "dspine_acceptance_length"])
def test_a_verifier_that_tells_no_numbers_leaves_nothing_behind(broken: str) -> None:
    application, other = Application(), Application()
    for each in (application, other):
        each.run(30, 2000)
    application.now_s += 1.0
    told = {"verifier0": verifier_figures(1000), "verifier1": verifier_figures(1000) | {broken: nan}}
    application.scaler.numbers({IDS[Role.VERIFIER]: context(Role.VERIFIER, told, 9000.0)})
    for each in (application, other):
        each.run(60, 6000)
    assert application.numbers[0] == other.numbers[0]


def test_what_cannot_be_decided_is_logged_once_and_all_numbers_stay(
    logged: pytest.LogCaptureFixture,
) -> None:
    """As settings of the policy that contradict later ones of the application."""
    application = Application({"verifiers": {"min_replicas": 4}})
    broken = replace(SETTINGS, verifiers=ReplicaLimits(max_replicas=3))
    shown = {
        IDS[Role.VERIFIER]: context(Role.VERIFIER, {"v": verifier_figures(10)}, 1.0, settings=broken),
        IDS[Role.DRAFTER]: context(Role.DRAFTER, {"d": drafter_figures(0.1)}, 1.0, settings=broken),
    }
    for _ in range(3):
        application.now_s += 1.0
        assert application.scaler.numbers(shown) == {}
    assert [record.levelname for record in logged.records] == ["WARNING"]
    assert "min_replicas" in logged.text
    application.run(30, 2000)
    assert application.numbers[0] == 4


def test_unknown_settings_are_refused() -> None:
    with pytest.raises(ConfigError, match="max_replica"):
        Scaler({"verifiers": {"max_replica": 3}})


def test_a_report_holds_only_what_was_told_last() -> None:
    """Figures that a replica tells no more, such as points of another curve, are not mixed with later ones."""
    shown = context(Role.DRAFTER, {"d": drafter_figures(0.5)}, 10.0)
    raw = shown.raw_metrics
    assert raw is not None
    raw["dspine_gone"] = context(Role.DRAFTER, {"d": {"x": 1.0}}, 9.0).raw_metrics["x"]
    [(name, values, age_s)] = Reports().read(shown, 0.0)
    assert (name, values.keys(), age_s) == ("d", drafter_figures(0.5).keys(), 0.0)


def test_replicas_that_are_gone_are_forgotten() -> None:
    """Their ids never come again; told under an old one the same time is new."""
    reports = Reports()
    shown = [context(Role.DRAFTER, {name: drafter_figures(0.5)}, 10.0) for name in ("d", "e", "d")]
    ages = [age_s for at_s, each in enumerate(shown) for _, _, age_s in reports.read(each, float(at_s))]
    assert ages == [0.0, 0.0, 0.0]


def test_replicas_without_any_knowledge_of_drafts_are_scaled() -> None:
    """As all that were started while there was no drafter."""
    application = Application()
    unknown = verifier_figures(1500) | {"dspine_speculation_gain": inf}
    decided = application.scaler.numbers(
        {
            IDS[Role.VERIFIER]: context(Role.VERIFIER, {"a": unknown, "b": unknown}, 1.0),
            IDS[Role.DRAFTER]: context(Role.DRAFTER, {}, 1.0, target=0),
        }
    )
    assert decided[IDS[Role.VERIFIER]] > 2
    assert decided[IDS[Role.DRAFTER]] > 0

from __future__ import annotations

import pytest
from ray.serve.autoscaling_policy import _apply_app_level_autoscaling_config, _apply_autoscaling_config
from ray.serve.config import AutoscalingPolicy

from dspine_cluster.errors import ConfigError
from dspine_serve.autoscaler import Autoscaler, DeploymentAutoscaler
from dspine_serve.scaling_config import Role
from dspine_serve.scaling_news import Writer
from tests.serve.scaling_contexts import IDS, context, drafter_figures, verifier_figures


@pytest.fixture(autouse=True)
def nobody_listens(monkeypatch: pytest.MonkeyPatch) -> None:
    """There is no Ray to tell of decisions."""
    monkeypatch.setattr(Writer, "write", lambda self, app_name, model, figures: None)


def policy(name: str, **settings: object) -> type[Autoscaler] | type[DeploymentAutoscaler]:
    """As Serve's controller gets it: sent by value."""
    configured = AutoscalingPolicy(policy_function=f"dspine_serve.autoscaler:{name}", policy_kwargs=settings)
    found: type[Autoscaler] | type[DeploymentAutoscaler] = configured.get_policy()
    return found


def test_serve_takes_what_the_policy_of_an_application_decides() -> None:
    decide = _apply_app_level_autoscaling_config(policy("Autoscaler")())
    contexts = {
        IDS[Role.VERIFIER]: context(Role.VERIFIER, {"v": verifier_figures(1600)}, 1.0),
        IDS[Role.DRAFTER]: context(Role.DRAFTER, {"d": drafter_figures(0.9)}, 1.0),
    }
    first, _ = decide(contexts)
    assert first == {IDS[Role.VERIFIER]: 2, IDS[Role.DRAFTER]: 3}
    second, _ = decide(contexts)
    assert second == {}


def test_serve_takes_what_the_policy_of_a_deployment_decides_and_keeps_it_between_two_decisions() -> None:
    decide = _apply_autoscaling_config(policy("DeploymentAutoscaler")(role="verifier"))
    shown = context(Role.VERIFIER, {"v": verifier_figures(1600)}, 1.0)
    assert decide(shown)[0] == 2
    shown.target_num_replicas = 2
    assert decide(shown)[0] == 2


def test_wrong_settings_of_a_policy_are_refused_when_it_is_made() -> None:
    with pytest.raises(ConfigError, match="lead"):
        Autoscaler(lead=3)

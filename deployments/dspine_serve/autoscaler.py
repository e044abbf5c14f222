"""The policies that Serve's controller calls, some ten times a second. Serve sends this module by value."""

from __future__ import annotations

from typing import Any

from ray.serve._private.common import DeploymentID
from ray.serve.config import AutoscalingContext

from dspine_serve.scaling import Scaler


class Autoscaler:
    """The policy of the whole application, which decides about verifiers and drafters together:

        autoscaling_policy:
          policy_function: dspine_serve.autoscaler:Autoscaler

    It goes by `args.autoscaling`; `policy_kwargs` have the same keys and outdo these.
    """

    def __init__(self, **settings: Any) -> None:
        self._scaler = Scaler(settings)

    def __call__(
        self, contexts: dict[DeploymentID, AutoscalingContext]
    ) -> tuple[dict[DeploymentID, int], dict[DeploymentID, dict[str, Any]]]:
        return self._scaler.numbers(contexts), {}


class DeploymentAutoscaler:
    """The policy of one deployment, where the application has none: verifiers and drafters each go by their own
    figures alone."""

    def __init__(self, **kwargs: Any) -> None:
        """`kwargs` are read from the context, as `Autoscaler` does."""
        del kwargs
        self._scaler = Scaler({})

    def __call__(self, context: AutoscalingContext) -> tuple[int, dict[str, Any]]:
        numbers = self._scaler.numbers({context.deployment_id: context})
        return numbers.get(context.deployment_id, context.target_num_replicas), {}

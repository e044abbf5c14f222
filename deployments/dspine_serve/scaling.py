"""From what replicas tell Serve's controller to numbers of replicas. Nothing here waits for anything."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from ray.serve._private.common import DeploymentID
from ray.serve.config import AutoscalingContext

from dspine_cluster.core.autoscaling import AutoscalerState, Decision, decide, decide_drafters
from dspine_cluster.core.autoscaling_config import AutoscalingConfig
from dspine_cluster.core.autoscaling_damping import Why
from dspine_cluster.core.autoscaling_report import decode_drafter, decode_verifier
from dspine_cluster.core.autoscaling_stats import Observation
from dspine_cluster.core.awake_clock import AwakeClock
from dspine_serve.leaving import Leaving
from dspine_serve.logs import Outage, log_like_serve
from dspine_serve.scaling_config import Role, ScalingNote, merged_settings, read_note
from dspine_serve.scaling_news import ScalingNews

_logger = logging.getLogger(__name__)

_PERIOD_S = 1.0
"""Between decisions: replicas tell no more often."""

_MAX_GAP_S = 2.0
"""Serve calls more often: what takes longer is a controller that stood still, and reports wait to be taken in."""

Contexts = Mapping[DeploymentID, AutoscalingContext]


class Scaler:
    """Decides about the deployments that it is shown: verifiers, drafters, or both."""

    def __init__(
        self,
        overrides: Mapping[str, Any],
        clock: Callable[[], float] | None = None,
        news: ScalingNews | None = None,
    ) -> None:
        """`overrides` outdo the settings of the deployments.

        Raises:
            ConfigError: they are no settings.
        """
        merged_settings({}, overrides)
        log_like_serve()
        self._overrides = overrides
        self._clock = clock or AwakeClock(_MAX_GAP_S)
        self._news = news or ScalingNews()
        self._reports = Reports()
        self._leaving = Leaving()
        self._state = AutoscalerState()
        self._settings: tuple[Mapping[str, Any], AutoscalingConfig] | None = None
        self._decided_at_s: float | None = None
        self._was_stale = False
        self._outage = Outage(_logger, "autoscaling decides nothing, and all numbers stay")

    def numbers(self, contexts: Contexts) -> dict[DeploymentID, int]:
        """How many replicas the deployments are to have; nothing where nothing is decided now.

        Raises nothing: Serve's controller would update no application any more.
        """
        now_s = self._clock()
        if self._decided_at_s is not None and now_s - self._decided_at_s < _PERIOD_S:
            return {}
        self._decided_at_s = now_s
        try:
            numbers = self._decide(contexts, now_s)
        except Exception as error:
            self._outage.lasts(error)
            return {}
        self._outage.is_over()
        return numbers

    def _decide(self, contexts: Contexts, now_s: float) -> dict[DeploymentID, int]:
        shown: dict[Role, AutoscalingContext] = {}
        note: ScalingNote | None = None
        for context in contexts.values():
            found = read_note(context.config)
            if found is not None:
                shown[found.role], note = context, found
        if note is None:
            return {}
        config = self._config(note.settings)
        observation = self._observe(shown, now_s)
        before = {
            Role.VERIFIER: observation.target_verifiers,
            Role.DRAFTER: observation.target_drafters,
        }
        decision = (decide if Role.VERIFIER in shown else decide_drafters)(observation, self._state, config)
        self._state = decision.state
        after = {Role.VERIFIER: decision.verifiers, Role.DRAFTER: decision.drafters}
        self._log(decision, is_change=any(after[role] != before[role] for role in shown))
        self._news.tell(note.model, shown, before, after, decision, config)
        return {context.deployment_id: after[role] for role, context in shown.items()}

    def _config(self, settings: Mapping[str, Any]) -> AutoscalingConfig:
        if self._settings is None or self._settings[0] != settings:
            self._settings = settings, merged_settings(settings, self._overrides)
        return self._settings[1]

    def _observe(self, shown: Mapping[Role, AutoscalingContext], now_s: float) -> Observation:
        targets = {role: context.target_num_replicas for role, context in shown.items()}
        reports = {role: list(self._reports.read(context, now_s)) for role, context in shown.items()}
        verifiers = [decode_verifier(*report) for report in reports.get(Role.VERIFIER, ())]
        drafters = [decode_drafter(*report) for report in reports.get(Role.DRAFTER, ())]
        known = [stats for stats in verifiers if stats is not None]
        return Observation(
            now_s=now_s,
            target_verifiers=targets.get(Role.VERIFIER, 0),
            target_drafters=targets.get(Role.DRAFTER, 0),
            verifiers=[*known, *self._leaving.update(known, now_s)],
            drafters=[stats for stats in drafters if stats is not None],
        )

    def _log(self, decision: Decision, *, is_change: bool) -> None:
        """Changes with their reasons; and once, when too little is known to change anything."""
        is_stale = decision.drafters_why is Why.STALE
        if is_change or (is_stale and not self._was_stale):
            _logger.info("Autoscaling: %s", decision.reason)
        else:
            _logger.debug("Autoscaling: %s", decision.reason)
        self._was_stale = is_stale


class Reports:
    """What replicas have told last, and how long ago. Clocks of nodes may differ, so a report is as old as it has been
    seen here, plus what it says of itself."""

    def __init__(self) -> None:
        self._seen: dict[DeploymentID, dict[str, tuple[float, float]]] = {}
        """Replica -> the time that its last report bears, and when that was seen first."""

    def read(
        self, context: AutoscalingContext, now_s: float
    ) -> Iterator[tuple[str, dict[str, float], float]]:
        """Replica id, figures and age of each replica that runs and has told any."""
        latest: dict[str, tuple[float, dict[str, float]]] = {}
        for name, by_replica in (context.raw_metrics or {}).items():
            for replica_id, series in by_replica.items():
                if not series:
                    continue
                at, key = series[-1].timestamp, replica_id.unique_id
                told_at, values = latest.get(key, (at, {}))
                if at > told_at:
                    told_at, values = at, {}
                if at == told_at:
                    values[name] = series[-1].value
                latest[key] = told_at, values
        before = self._seen.get(context.deployment_id, {})
        seen = self._seen[context.deployment_id] = {
            key: before[key] if key in before and before[key][0] == told_at else (told_at, now_s)
            for key, (told_at, _) in latest.items()
        }
        for key, (_, values) in latest.items():
            yield key, values, now_s - seen[key][1]

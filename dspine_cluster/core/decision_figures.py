"""What dynamic verification decided and why, and how well it predicted times: counters by name."""

from __future__ import annotations

from dspine_cluster.core.verify_walk import Stop

_STOPS = {stop: f"verify_stops_total{{reason={stop}}}" for stop in Stop}
_DRAFTED = "draft_decisions_total{decision=draft}"
_PLAIN = "draft_decisions_total{decision=plain}"
_FULL_TRIALS = "trials_total{kind=full}"
_PASS_S, _PREDICTED_PASS_S = "judged_pass_seconds_total", "predicted_pass_seconds_total"
_DRAFT_S, _PREDICTED_DRAFT_S = "judged_draft_seconds_total", "predicted_draft_seconds_total"
_NAMES = (
    *_STOPS.values(),
    *(_DRAFTED, _PLAIN, _FULL_TRIALS),
    *(_PASS_S, _PREDICTED_PASS_S, _DRAFT_S, _PREDICTED_DRAFT_S),
)


class DecisionFigures:
    """Any thread may ask for the totals."""

    def __init__(self) -> None:
        self._totals = dict.fromkeys(_NAMES, 0.0)

    @property
    def totals(self) -> dict[str, float]:
        return dict(self._totals)

    def note_stop(self, stop: Stop) -> None:
        """Why no more was verified in a pass."""
        self._totals[_STOPS[stop]] += 1

    def note_decisions(self, *, num_drafted: int, num_plain: int) -> None:
        """Of requests whose round has ended."""
        self._totals[_DRAFTED] += num_drafted
        self._totals[_PLAIN] += num_plain

    def note_full_trial(self) -> None:
        self._totals[_FULL_TRIALS] += 1

    def note_pass(self, *, predicted_s: float, taken_s: float) -> None:
        self._totals[_PREDICTED_PASS_S] += predicted_s
        self._totals[_PASS_S] += taken_s

    def note_drafts(self, *, predicted_s: float, taken_s: float) -> None:
        self._totals[_PREDICTED_DRAFT_S] += predicted_s
        self._totals[_DRAFT_S] += taken_s

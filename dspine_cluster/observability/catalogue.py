"""Every metric that is exported: what it is called, what it counts and in which unit.

Replicas name their figures without the prefix and with the labels that they count apart, as `series.py` has it; who
exports them adds `SOURCE_LABELS`.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

PREFIX = "dspine_"
SOURCE_LABELS = ("replica", "model")
"""Which replica tells it, and the model that it serves, by the name that clients use."""

LENGTHS = tuple(float(length) for length in range(17))
"""Bounds for tokens of a block."""
ROUND_SECONDS = (0.0005, 0.001, 0.002, 0.004, 0.008, 0.016, 0.032, 0.064, 0.128, 0.256, 0.512, 1.024)
FIRST_TOKEN_SECONDS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)
INTER_TOKEN_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5)


class Kind(StrEnum):
    """As Prometheus calls them."""

    COUNTER = "counter"
    GAUGE = "gauge"
    HISTOGRAM = "histogram"


@dataclass(frozen=True, slots=True)
class Metric:
    """One metric."""

    figure: str
    """Its name without the prefix."""
    kind: Kind
    unit: str
    help: str
    labels: tuple[str, ...] = ()
    """Beside `SOURCE_LABELS`."""
    bounds: tuple[float, ...] = ()
    """Of the buckets of a histogram."""

    @property
    def name(self) -> str:
        """As it is exported."""
        return PREFIX + self.figure

    @property
    def figure_names(self) -> tuple[str, ...]:
        """The names of its figures: three for a histogram."""
        if self.kind is not Kind.HISTOGRAM:
            return (self.figure,)
        return tuple(f"{self.figure}_{part}" for part in ("bucket", "sum", "count"))


def _counter(figure: str, unit: str, text: str, *labels: str) -> Metric:
    return Metric(f"{figure}_total", Kind.COUNTER, unit, text, labels)


def _gauge(figure: str, unit: str, text: str, *labels: str) -> Metric:
    return Metric(figure, Kind.GAUGE, unit, text, labels)


def _histogram(figure: str, unit: str, text: str, bounds: tuple[float, ...], *labels: str) -> Metric:
    return Metric(figure, Kind.HISTOGRAM, unit, text, labels, bounds)


VERIFIER = (
    _counter("rounds", "rounds", "Rounds of single requests, drafted or plain."),
    _counter("drafted_rounds", "rounds", "Of these, those with proposals at hand, verified or not."),
    _counter("proposed_tokens", "tokens", "Proposals that drafters made."),
    _counter("verified_tokens", "tokens", "Proposals that the target checked."),
    _counter("accepted_tokens", "tokens", "Accepted proposals that became output."),
    _counter(
        "committed_tokens", "tokens", "Tokens committed by rounds; the first of an answer belongs to none."
    ),
    _counter(
        "verified_tokens_per_position", "tokens", "Checked proposals, by position in the block.", "position"
    ),
    _counter(
        "accepted_tokens_per_position", "tokens", "Accepted proposals, by position in the block.", "position"
    ),
    _histogram("acceptance_length", "tokens", "Committed tokens a round, bonus included.", LENGTHS[1:]),
    _histogram("verify_length", "tokens", "Proposals of a block that the target checked.", LENGTHS[:-1]),
    _histogram(
        "round_seconds",
        "seconds",
        "Parts of rounds: from asking for drafts to their arrival, planning, the pass, committing.",
        ROUND_SECONDS,
        "phase",
    ),
    _counter(
        "draft_queue_seconds",
        "seconds",
        "What requests waited for drafts beyond the time that these took, summed over requests.",
    ),
    _counter("draft_fallback", "rounds", "Rounds that were to be drafted and decoded plainly.", "reason"),
    _counter("prompt_tokens", "tokens", "Tokens of the prompts that were admitted."),
    _counter("cached_prompt_tokens", "tokens", "Of these, those that were found in the prefix cache."),
    _counter("finished_requests", "requests", "Requests that ended, aborted ones included."),
    _counter("preemptions", "requests", "Requests that gave up their pages to others and began again."),
    _counter("evicted_pages", "pages", "Cached pages that others took the place of."),
    _counter("evicted_checkpoints", "checkpoints", "Saved recurrent states that others took the place of."),
    _gauge("running_requests", "requests", "Requests that hold pages and a recurrent state."),
    _gauge("waiting_requests", "requests", "Requests that wait for these."),
    _gauge(
        "page_usage_ratio",
        "ratio",
        "Pages of running requests, of all; cached ones that none holds are free.",
    ),
    _gauge("cached_pages", "pages", "Pages that later prompts can share."),
    _gauge("checkpoints", "checkpoints", "Saved recurrent states."),
    _gauge("connected_drafters", "drafters", "Drafters that it has a channel to."),
    _gauge("drafted_requests", "requests", "Requests that are drafted for at present."),
    _gauge(
        "halves_take_turns", "boolean", "1 while one half of the batch is verified and the other drafted for."
    ),
    _counter("draft_or_plain_switches", "switches", "Requests that began or ceased to be drafted for."),
    _counter("draft_decisions", "rounds", "Rounds for which drafts were asked, or not.", "decision"),
    _counter("verify_stops", "passes", "Why no more proposals of a pass were verified.", "reason"),
    _counter("trials", "rounds", "Rounds that tried what is not done at present.", "kind"),
    _counter("judged_pass_seconds", "seconds", "Time of passes for which there was a prediction."),
    _counter("predicted_pass_seconds", "seconds", "What was predicted for them."),
    _counter("judged_draft_seconds", "seconds", "Time of drafts."),
    _counter("predicted_draft_seconds", "seconds", "What was predicted for them."),
)
"""Of a verifier replica."""

DRAFTER = (
    _gauge("drafter_channels", "channels", "Verifiers that are connected."),
    _gauge("drafter_requests", "requests", "Requests that it drafts for."),
    _gauge("drafter_page_usage_ratio", "ratio", "Pages of open requests, of all."),
    _gauge("drafter_cached_pages", "pages", "Pages of context that later requests can share."),
    _counter("drafter_evicted_pages", "pages", "Cached pages that others took the place of."),
    _counter("drafter_cached_tokens", "tokens", "Context that requests found cached when they opened."),
    _counter("drafter_batches", "batches", "Batches of blocks."),
    _counter("drafter_blocks", "blocks", "Blocks that were drafted."),
    _counter("drafter_features", "tokens", "Features that came."),
    _counter("drafter_needs", "blocks", "Blocks not drafted for lack of features."),
    _counter("drafter_busy", "blocks", "Blocks refused because too many waited."),
    _counter("drafter_draft_seconds", "seconds", "Time spent on drafting."),
    _counter("drafter_ingest_seconds", "seconds", "Time spent on taking in features."),
)
"""Of a drafter replica."""

INGRESS = (
    _counter(
        "http_requests",
        "requests",
        "HTTP requests that were answered; 499: the client left.",
        "path",
        "status",
    ),
    _histogram(
        "time_to_first_token_seconds",
        "seconds",
        "From the admission of a request to the first token of each completion.",
        FIRST_TOKEN_SECONDS,
    ),
    _histogram(
        "inter_token_seconds",
        "seconds",
        "Time between parts of a completion, divided among the tokens of the later one.",
        INTER_TOKEN_SECONDS,
    ),
    _gauge("open_requests", "requests", "Completions that run or wait."),
    _gauge("waiting_prompt_tokens", "tokens", "Tokens of prompts whose answers have not begun."),
    _counter("refused_requests", "requests", "Requests refused at once for the load or for a key's limits."),
    _counter("placements", "requests", "Choices of a verifier, or that there was none, by reason.", "reason"),
    _counter("colocated_placements", "requests", "Choices of a verifier that has a drafter on its node."),
    _counter(
        "resumed_streams", "requests", "Completions that went on elsewhere when their verifier was lost."
    ),
    _counter("lost_streams", "requests", "Completions that could not be resumed."),
    _gauge("open_streams", "requests", "Streams from verifiers."),
    _gauge("reservations", "requests", "Placed requests that their verifier does not count yet."),
)
"""Of an ingress replica."""

CLUSTER = (
    _gauge("verifier_replicas", "replicas", "Verifiers that the directory knows."),
    _gauge("drafter_replicas", "replicas", "Drafters that the directory knows."),
)
"""What an ingress replica knows of the application."""

AUTOSCALER = (
    _gauge("autoscaling_target_replicas", "replicas", "Replicas that there are to be.", "deployment"),
    _gauge("autoscaling_asked_tokens_per_s", "tokens/s", "Demand that is planned for."),
    _gauge("autoscaling_borne_tokens_per_s", "tokens/s", "What one verifier bears under the objective."),
    _counter(
        "autoscaling_changes",
        "replicas",
        "Replicas that were added or taken away.",
        "deployment",
        "direction",
    ),
    _counter(
        "autoscaling_decisions", "decisions", "Decisions, by what held them back.", "deployment", "reason"
    ),
)
"""Of autoscaling, which runs in Serve's controller: its replica is `autoscaler`."""

TRACING = (
    _counter(
        "trace_spans",
        "spans",
        "Spans of traced requests: exported, refused by their receiver, or dropped because too many waited.",
        "outcome",
    ),
)
"""Of a verifier or ingress replica whose requests are traced."""

METRICS = (*VERIFIER, *DRAFTER, *INGRESS, *CLUSTER, *AUTOSCALER, *TRACING)
METRIC_OF_FIGURE = {name: metric for metric in METRICS for name in metric.figure_names}

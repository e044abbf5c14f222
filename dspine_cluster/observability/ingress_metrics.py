"""What an ingress counts of answers and their speed. One event loop writes it."""

from __future__ import annotations

from collections import Counter

from dspine_cluster.observability.catalogue import FIRST_TOKEN_SECONDS, INTER_TOKEN_SECONDS
from dspine_cluster.observability.histogram import Histogram
from dspine_cluster.observability.series import series


class IngressMetrics:
    """Counters only grow."""

    def __init__(self) -> None:
        self.answers: Counter[tuple[str, int]] = Counter()
        """HTTP requests, by path and status."""
        self.time_to_first_token_s = Histogram(FIRST_TOKEN_SECONDS)
        self.inter_token_s = Histogram(INTER_TOKEN_SECONDS)

    def figures(self) -> dict[str, float]:
        """By name."""
        answers = {
            series("http_requests_total", {"path": path, "status": str(status)}): count
            for (path, status), count in self.answers.items()
        }
        return {
            **answers,
            **self.time_to_first_token_s.figures("time_to_first_token_seconds"),
            **self.inter_token_s.figures("inter_token_seconds"),
        }

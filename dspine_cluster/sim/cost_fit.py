"""A cost model from what `gpu_round` has measured."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import inf
from pathlib import Path
from typing import Any

from dspine_cluster.core.cost_model import CostModel
from dspine_cluster.errors import ConfigError


def read_costs(path: Path, model: str = "27b") -> CostModel:
    """The measured costs of a model.

    Raises:
        ConfigError: the file is none of `gpu_round`, or has too little of the model.
    """
    try:
        results = json.loads(path.read_text(encoding="utf-8"))["results"]
        return fit_costs(results, model)
    except (OSError, ValueError, KeyError, TypeError, OverflowError) as error:
        raise ConfigError(f"{path} is no report of gpu_round with parts of {model}: {error}") from error


def fit_costs(results: Sequence[Mapping[str, Any]], model: str) -> CostModel:
    """Plain passes give the weights and what a request adds, verify passes what a token adds, drafts their own two.

    Host time, which `step_s` stands for, and the K/V's reading stay at their defaults.

    Raises:
        ValueError: a part is missing, or was measured at one size only.
    """
    base = CostModel()
    plain = _line(_points(results, model, "plain"))
    draft = _line(_points(results, model, "draft"))
    weights_s = max(1e-6, plain[0] - base.step_s)
    state_s = max(0.0, plain[1])
    verify = [(r, t, s) for r, t, s in _points(results, model, "verify")]
    # Of a pass that is long enough for arithmetic to set its time.
    requests, tokens, seconds = max(verify, key=lambda point: point[1])
    token_s = max((seconds - base.step_s - requests * state_s) / tokens, 1e-9)
    return replace(
        base,
        weights_s=weights_s,
        state_s=state_s,
        token_s=token_s,
        draft_s=max(0.0, draft[0]),
        draft_request_s=max(0.0, draft[1]),
    )


def _points(results: Sequence[Mapping[str, Any]], model: str, part: str) -> list[tuple[int, int, float]]:
    """(requests, tokens, seconds), the better of with and without graphs."""
    points = []
    for row in results:
        if row["model"] == model and row["part"] == part:
            times = [row[name] for name in ("eager_ms", "graph_ms") if row[name] is not None]
            points.append((int(row["num_requests"]), int(row["num_tokens"]), min(times) / 1000))
    if not all(tokens > 0 and 0 < seconds < inf for _, tokens, seconds in points):
        raise ValueError(f"{part} has sizes or times that are not positive")
    if len({requests for requests, _, _ in points}) < 2:
        raise ValueError(f"{part} was not measured at two sizes")
    return points


def _line(points: Sequence[tuple[int, int, float]]) -> tuple[float, float]:
    """Seconds at no request, and for each: least squares."""
    count = len(points)
    mean_x = sum(x for x, _, _ in points) / count
    mean_y = sum(y for _, _, y in points) / count
    slope = sum((x - mean_x) * (y - mean_y) for x, _, y in points) / sum(
        (x - mean_x) ** 2 for x, _, _ in points
    )
    return mean_y - slope * mean_x, slope

from __future__ import annotations

import json
from math import inf, nan
from pathlib import Path
from typing import Any

import pytest

from dspine_cluster.core.cost_model import CostModel
from dspine_cluster.errors import ConfigError
from dspine_cluster.sim.cost_fit import fit_costs, read_costs

TRUE = CostModel(weights_s=0.02, token_s=1e-4, state_s=5e-5, draft_s=0.003, draft_request_s=1e-4)


def rows() -> list[dict[str, Any]]:
    found = []
    for count in (1, 8, 32):
        times = {
            "plain": (count, TRUE.pass_s(count, count, 0)),
            "verify": (16 * count, TRUE.pass_s(count, 16 * count, 0)),
            "draft": (16 * count, TRUE.drafts_s(count)),
        }
        for part, (tokens, seconds) in times.items():
            row = {"model": "27b", "part": part, "num_requests": count, "num_tokens": tokens}
            found.append(row | {"eager_ms": 2000 * seconds, "graph_ms": 1000 * seconds})
    return found


def test_what_was_measured_comes_back(tmp_path: Path) -> None:
    path = tmp_path / "round.json"
    path.write_text(json.dumps({"results": rows()}))
    costs = read_costs(path)
    for name in ("weights_s", "token_s", "state_s", "draft_s", "draft_request_s"):
        assert getattr(costs, name) == pytest.approx(getattr(TRUE, name), rel=1e-6)


def test_one_size_is_too_little() -> None:
    with pytest.raises(ValueError, match="two sizes"):
        fit_costs([row for row in rows() if row["num_requests"] == 1], "27b")


@pytest.mark.parametrize("keys", [("num_requests",), ("num_tokens",), ("eager_ms", "graph_ms")])
@pytest.mark.parametrize("value", [0, -1, nan, inf])
def test_sizes_and_times_that_cannot_be_are_refused(
    tmp_path: Path, keys: tuple[str, ...], value: float
) -> None:
    path = tmp_path / "round.json"
    path.write_text(json.dumps({"results": [row | dict.fromkeys(keys, value) for row in rows()]}))
    with pytest.raises(ConfigError, match="no report of gpu_round"):
        read_costs(path)

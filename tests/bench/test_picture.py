from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from dspine_cluster.bench.picture import check_picture, plot_acceptance
from dspine_cluster.errors import ConfigError


def row(task: str, drafter: str, rates: list[float | None]) -> dict[str, Any]:
    return {"task": task, "drafter": drafter, "acceptance_length": 2.0, "accepted_per_position": rates}


REPORT = {
    "results": [
        row("code", "none", [None, None]),
        row("code", "dspine", [0.9, 0.8]),
        row("chat", "dspine", [0.7, None]),
        row("code", "dflash", [0.6, 0.4]),
        row("chat", "dflash", [None, None]),
    ]
}


@pytest.mark.parametrize("ending", ["png", "svg", "PDF"])
def test_a_picture_is_drawn_in_the_format_of_its_ending(tmp_path: Path, ending: str) -> None:
    path = tmp_path / f"out.{ending}"
    check_picture(path)
    plot_acceptance(REPORT, path)
    assert path.stat().st_size > 1000


@pytest.mark.parametrize("name", ["out.xyz", "out", "png"])
def test_an_ending_without_a_format_is_refused_with_the_known_ones(name: str) -> None:
    with pytest.raises(ConfigError, match=r"must end in one of .*\.png.*\.svg"):
        check_picture(Path(name))

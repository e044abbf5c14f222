from __future__ import annotations

from pathlib import Path

import pytest

from dspine_cluster.bench.live import run_live
from dspine_cluster.errors import EngineStoppedError


def module(folder: Path, code: str, monkeypatch: pytest.MonkeyPatch) -> str:
    """A module that a new interpreter finds; `file` is the second of its arguments."""
    (folder / "measures.py").write_text(f"import sys\nfile = sys.argv[2]\n{code}\n")
    monkeypatch.setenv("PYTHONPATH", str(folder))
    return "measures"


def test_the_report_of_the_other_process_is_returned(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    name = module(tmp_path, """open(file, "w").write('{"colocated_ratio": 1.0}')""", monkeypatch)
    assert run_live(name) == {"colocated_ratio": 1.0}


def test_options_are_told_by_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    code = "import json; json.dump({'options': sys.argv[3:]}, open(file, 'w'))"
    report = run_live(module(tmp_path, code, monkeypatch), streams=2, seed=1)
    assert report == {"options": ["--streams", "2", "--seed", "1"]}


def test_a_failure_tells_what_the_other_process_wrote(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = module(tmp_path, "sys.exit('no room for a node')", monkeypatch)
    with pytest.raises(EngineStoppedError, match="no room for a node"):
        run_live(name)

"""Measurements that start Ray on this machine, each in a process of its own."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from dspine_cluster.errors import ConfigError, EngineStoppedError

_TIMEOUT_S = 1800.0
_SHOWN_CHARACTERS = 2000


def can_run_live() -> bool:
    """Whether the deployment and Ray are installed."""
    return find_spec("ray") is not None and find_spec("dspine_serve") is not None


def run_live(module: str, **options: int) -> dict[str, Any]:
    """What `python -m module --json FILE` with further options reports.

    Raises:
        ConfigError: the deployment or Ray is not installed.
        EngineStoppedError: it failed; the message ends with the end of what it wrote.
    """
    if not can_run_live():
        raise ConfigError("install Ray and the deployment to measure them")
    arguments = [text for name, value in options.items() for text in (f"--{name}", str(value))]
    with tempfile.TemporaryDirectory() as folder:
        report_file = Path(folder) / "live.json"
        done = subprocess.run(
            [sys.executable, "-m", module, "--json", str(report_file), *arguments],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=_TIMEOUT_S,
            check=False,
        )
        if done.returncode != 0:
            raise EngineStoppedError(f"{module} failed:\n{done.stdout[-_SHOWN_CHARACTERS:]}")
        report: dict[str, Any] = json.loads(report_file.read_text(encoding="utf-8"))
    return report

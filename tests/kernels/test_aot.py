from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest


def run_without_interpreter(arguments: list[str], cache: Path) -> subprocess.CompletedProcess[str]:
    """Python in a process that compiles, with an empty cache of compiled kernels."""
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    environment["TRITON_CACHE_DIR"] = str(cache)
    return subprocess.run(
        [sys.executable, *arguments], env=environment, capture_output=True, text=True, check=False
    )


@pytest.mark.timeout(600)
def test_all_kernels_compile_without_a_gpu_and_keep_their_bounds(tmp_path: Path) -> None:
    file = tmp_path / "kernels.json"
    done = run_without_interpreter(
        ["-m", "dspine_kernels.aot", "--arch", "90", "--json", str(file)], tmp_path / "cache"
    )
    assert done.returncode == 0, done.stdout + done.stderr
    results = json.loads(file.read_text())["results"]
    assert len({(result["kernel"], result["arch"]) for result in results}) == len(results)
    assert all(result["registers"] > 0 for result in results)

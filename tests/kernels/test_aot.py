from __future__ import annotations

import json
import os
import re
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
@pytest.mark.parametrize("arch", [80, 90, 100])
def test_all_kernels_compile_without_a_gpu_and_keep_their_bounds(arch: int, tmp_path: Path) -> None:
    file = tmp_path / "kernels.json"
    arguments = ["-m", "dspine_kernels.aot", "--arch", str(arch), "--json", str(file)]
    done = run_without_interpreter(arguments, tmp_path / "cache")
    assert done.returncode == 0, done.stdout + done.stderr
    results = json.loads(file.read_text())["results"]
    assert len({result["kernel"] for result in results}) == len(results)
    assert all(result["registers"] > 0 for result in results)


def test_a_kernel_beyond_its_bounds_is_told(tmp_path: Path) -> None:
    code = """if True:
        from dataclasses import replace
        from dspine_kernels.aot import all_specs, compile_spec

        spec = replace(next(all_specs()), max_shared_bytes=-1)
        print(compile_spec(spec, 90).excess)
    """
    done = run_without_interpreter(["-c", code], tmp_path)
    assert re.match(r"shared memory: \d+ > -1 bytes\n", done.stdout), done.stdout + done.stderr

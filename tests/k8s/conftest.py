from __future__ import annotations

import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).parents[2]
OVERLAYS = ("cpu-miniature", "gpu-single-node", "gpu-multi-node")

Objects = list[dict[str, Any]]


@pytest.fixture(scope="session", params=OVERLAYS)
def overlay(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="session")
def objects(overlay: str) -> Objects:
    """What `kubectl apply -k` would send."""
    return render(overlay)


def render(overlay: str) -> Objects:
    """What `kubectl kustomize` gives; skips the test where there is no kubectl."""
    if shutil.which("kubectl") is None:
        pytest.skip("kubectl is not installed")
    command = ["kubectl", "kustomize", str(ROOT / "k8s" / "overlays" / overlay)]
    made = subprocess.run(command, check=False, capture_output=True, text=True, timeout=60)
    assert made.returncode == 0, made.stderr
    return list(yaml.safe_load_all(made.stdout))


@pytest.fixture(scope="session")
def ray_service(objects: Objects) -> dict[str, Any]:
    [service] = [item for item in objects if item["kind"] == "RayService"]
    return service

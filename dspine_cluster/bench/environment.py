"""Where and with what a benchmark ran."""

from __future__ import annotations

import os
import platform
from importlib.metadata import version
from typing import Any

import torch


def describe_environment() -> dict[str, Any]:
    """Versions, threads and hardware, as every report holds them under `environment`."""
    return {
        "dspine_cluster": version("dspine-cluster"),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "torch_threads": torch.get_num_threads(),
        "machine": platform.machine(),
        "cpu_count": os.cpu_count(),
        "gpu": torch.cuda.get_device_name() if torch.cuda.is_available() else None,
    }

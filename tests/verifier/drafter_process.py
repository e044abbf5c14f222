"""A drafter replica in a process of its own."""

from __future__ import annotations

import sys
import time

import torch

from dspine_cluster.config import DrafterServiceConfig, ModelSource
from dspine_cluster.drafter.service import DrafterService


def main() -> None:
    endpoint, drafter, secret = sys.argv[1:]
    torch.set_num_threads(1)
    service = DrafterService.load(
        DrafterServiceConfig(
            drafter=ModelSource(drafter), endpoints=(endpoint,), secret=secret, pool_tokens=8192
        )
    )
    service.start()
    print("ready", flush=True)
    while True:
        time.sleep(1)
        service.check_health()


if __name__ == "__main__":
    main()

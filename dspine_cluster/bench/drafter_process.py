"""A drafter replica in a process of its own, as it is served."""

from __future__ import annotations

import multiprocessing
import time
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing.process import BaseProcess
from typing import Any

from dspine_cluster.config import VerifierConfig, limit_threads
from dspine_cluster.drafter.service import DrafterService
from dspine_cluster.errors import ChannelError
from dspine_cluster.garbage import collect_rarely
from dspine_cluster.local_pair import drafter_config

_START_TIMEOUT_S = 120.0


@contextmanager
def drafter_process(config: VerifierConfig, endpoint: str) -> Iterator[BaseProcess]:
    """A drafter for the verifiers that `config` describes; it listens when this is entered.

    Raises:
        ChannelError: it was not ready in time.
    """
    context = multiprocessing.get_context("spawn")
    ready = context.Event()
    process = context.Process(target=_serve, args=(config, endpoint, ready), daemon=True)
    process.start()
    try:
        if not ready.wait(_START_TIMEOUT_S):
            raise ChannelError(f"a drafter was not ready after {_START_TIMEOUT_S:.0f} s")
        yield process
    finally:
        process.kill()
        process.join()


def _serve(config: VerifierConfig, endpoint: str, ready: Any) -> None:
    limit_threads()
    collect_rarely()
    service = DrafterService.load(drafter_config(config, endpoint))
    service.start()
    ready.set()
    parent = multiprocessing.parent_process()
    while parent is None or parent.is_alive():
        time.sleep(1.0)
        service.check_health()

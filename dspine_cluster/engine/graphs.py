"""Work that is recorded once and replayed with one launch: CUDA graphs, and the same work unrecorded elsewhere."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

import torch

from dspine_kernels.dispatch import uses_triton

Key = TypeVar("Key", bound=Hashable)
Output = TypeVar("Output")

_LIMIT_BYTES = 2 * 2**30
_recording = threading.Lock()
"""A process records one graph at a time."""
_logger = logging.getLogger(__name__)


def can_record(device: torch.device) -> bool:
    """Whether the operations of a pass can be recorded there: kernels that never ask the host."""
    return uses_triton(torch.empty(0, device=device))


class GraphCache(Generic[Key, Output]):
    """Recorded work by key. Graphs share their memory, so an output is good until other work is replayed.

    For one thread and one stream. What works reads from or writes to must stay where it is and be filled anew before
    each run, and work must not wait for the device, nor let shapes depend on what is in there.
    """

    def __init__(self, device: torch.device, *, limit_bytes: int = _LIMIT_BYTES) -> None:
        """Nothing more is recorded once the graphs have taken `limit_bytes`."""
        self._device = device
        records = can_record(device)
        self._left_bytes = limit_bytes if records else 0
        self._pool = torch.cuda.graph_pool_handle() if records else None
        self._recorded: dict[Key, tuple[torch.cuda.CUDAGraph, Output]] = {}

    def run(self, key: Key, work: Callable[[], Output]) -> Output:
        """Do the work of `key`: replay it, or do it launch by launch and record it for the next time."""
        recorded = self._recorded.get(key)
        if recorded is not None:
            graph, output = recorded
            graph.replay()
            return output
        output = work()  # also compiles and loads what recording must find ready
        if self._left_bytes > 0:
            self._record(key, work)
        return output

    def is_recorded(self, key: Key) -> bool:
        return key in self._recorded

    def _record(self, key: Key, work: Callable[[], Output]) -> None:
        torch.cuda.empty_cache()  # as recording begins with it, so that the difference is what the graph takes
        before_bytes = torch.cuda.memory_reserved(self._device)
        graph = torch.cuda.CUDAGraph()
        try:
            with _recording, torch.cuda.graph(graph, pool=self._pool, capture_error_mode="thread_local"):
                output = work()
        except RuntimeError as error:
            # The work has been done, and will be again launch by launch.
            self._left_bytes = 0
            _logger.warning("no CUDA graphs: %s could not be recorded: %s", key, error)
            return
        self._recorded[key] = graph, output
        self._left_bytes -= max(0, torch.cuda.memory_reserved(self._device) - before_bytes)

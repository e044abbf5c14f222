"""Sums over the ranks of one machine."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch._C._distributed_c10d import FileStore

from dspine_cluster.errors import ConfigError
from dspine_cluster.models.sharding import Shard

SUM_TIMEOUT_S = 60.0
"""Longer than any pass: beyond it a rank counts as lost."""


class RankGroup:
    """Where ranks meet: over loopback on CPUs (gloo), between GPUs by NCCL."""

    def __init__(self) -> None:
        self._backend: Any = None  # its methods are missing from torch's stubs

    def join(self, folder: Path, shard: Shard, device: torch.device) -> None:
        """Returns once all ranks are here. `folder` is theirs alone, and empty before the first comes.

        Raises:
            ConfigError: this torch cannot join GPUs.
            RuntimeError: some did not come in time.
        """
        store = FileStore(str(folder / "ranks"), shard.num_ranks)
        timeout = timedelta(seconds=SUM_TIMEOUT_S)
        if device.type == "cuda":
            if not dist.is_nccl_available():
                raise ConfigError("tensor_parallel on GPUs needs a torch that is built with NCCL")
            torch.cuda.set_device(device)
            nccl = dist.ProcessGroupNCCL.Options()
            nccl._timeout = timeout
            self._backend = dist.ProcessGroupNCCL(store, shard.rank, shard.num_ranks, nccl)
            return
        options: Any = dist.ProcessGroupGloo._Options()  # type: ignore[attr-defined]
        # The default is an interface that the host's name stands for, which others may reach.
        options._devices = [dist.ProcessGroupGloo.create_device(hostname="127.0.0.1")]
        options._timeout = timeout
        self._backend = dist.ProcessGroupGloo(store, shard.rank, shard.num_ranks, options)

    def sum(self, tensor: Tensor) -> None:
        """Replace a tensor by its sum over all ranks, in place.

        Raises:
            RuntimeError: a rank is lost.
        """
        assert self._backend is not None
        self._backend.allreduce([tensor]).wait()

    def leave(self) -> None:
        self._backend = None

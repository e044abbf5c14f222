"""The other ranks as the leading one sees them: processes that it starts, tells each step, and ends."""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from select import select

import torch

from dspine_cluster.core.prefix_cache import CacheMemory
from dspine_cluster.engine.batch import PackedRows
from dspine_cluster.engine.ranks.group import RankGroup
from dspine_cluster.engine.ranks.orders import LoadOrder, PoolOrder
from dspine_cluster.engine.ranks.pipes import Tag, read_message, write_message
from dspine_cluster.engine.ranks.steps import Copy, Step, encode_step
from dspine_cluster.errors import CheckpointError, ConfigError, EngineStoppedError
from dspine_cluster.models.sharding import Shard

_LOAD_TIMEOUT_S = 1800.0
_POOLS_TIMEOUT_S = 60.0
_END_TIMEOUT_S = 5.0


class Followers:
    """Ranks 1 and above of a target. For one thread at a time; `check` for any."""

    def __init__(self, folder: Path, *, dtype: str, device: torch.device, num_ranks: int) -> None:
        """Start their processes, which load meanwhile; `join` waits for them.

        Raises:
            ConfigError: there are not as many GPUs.
        """
        if device.type == "cuda" and torch.cuda.device_count() < num_ranks:
            raise ConfigError(
                f"tensor_parallel {num_ranks} needs as many GPUs, and {torch.cuda.device_count()} are visible"
            )
        self.group = RankGroup()
        self._device = device
        self._num_ranks = num_ranks
        self._copies: list[tuple[Copy, int, int]] = []
        self._meeting = tempfile.TemporaryDirectory(prefix="dspine-ranks-")
        self._processes = [
            subprocess.Popen(
                [sys.executable, "-m", "dspine_cluster.engine.ranks.follower"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
            )
            for _ in range(1, num_ranks)
        ]
        for rank, process in enumerate(self._processes, 1):
            order = LoadOrder(
                folder=str(folder.absolute()),
                dtype=dtype,
                device=f"cuda:{rank}" if device.type == "cuda" else "cpu",
                rank=rank,
                num_ranks=num_ranks,
                meeting_folder=self._meeting.name,
            )
            self._write(rank, process, Tag.LOAD, order.to_json())

    def join(self) -> None:
        """Return when every rank has loaded its part, and sums work.

        Raises:
            CheckpointError: a rank could not load it.
            EngineStoppedError: a rank ended, or was not in time.
        """
        self._await_all(_LOAD_TIMEOUT_S)
        self.group.join(Path(self._meeting.name), Shard(0, self._num_ranks), self._device)

    def make_pools(self, order: PoolOrder) -> None:
        """Give every rank pools of these sizes.

        Raises:
            EngineStoppedError: as `join`.
        """
        self._write_all(Tag.POOLS, order.to_json())
        self._await_all(_POOLS_TIMEOUT_S)

    def warm_up(self) -> None:
        """Have them record passes, as this rank is about to."""
        self._write_all(Tag.WARM_UP)

    def note_copy(self, kind: Copy, source: int, target: int) -> None:
        """Have it made on every rank before the next pass."""
        self._copies.append((kind, source, target))

    def run(self, packed: PackedRows, num_pending: Sequence[int]) -> None:
        """Have every rank begin a pass.

        Raises:
            EngineStoppedError: a rank has ended.
        """
        self._write_all(Tag.STEP, encode_step(Step(self._copies, packed, num_pending)))
        self._copies = []

    def check(self) -> None:
        """Raises EngineStoppedError when a rank has ended."""
        for rank, process in enumerate(self._processes, 1):
            if process.poll() is not None:
                raise EngineStoppedError(f"rank {rank} of the target ended with code {process.returncode}")

    def close(self) -> None:
        """End them."""
        self.group.leave()
        for process in self._processes:
            assert process.stdin is not None
            assert process.stdout is not None
            with suppress(BrokenPipeError):  # it ended before
                process.stdin.close()
            process.stdout.close()
        deadline_s = time.monotonic() + _END_TIMEOUT_S
        for process in self._processes:
            try:
                process.wait(max(0.0, deadline_s - time.monotonic()))
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        self._meeting.cleanup()

    def _write_all(self, tag: Tag, content: bytes = b"") -> None:
        for rank, process in enumerate(self._processes, 1):
            self._write(rank, process, tag, content)

    def _write(self, rank: int, process: subprocess.Popen[bytes], tag: Tag, content: bytes) -> None:
        assert process.stdin is not None
        try:
            write_message(process.stdin, tag, content)
        except BrokenPipeError as error:
            raise EngineStoppedError(f"rank {rank} of the target has ended") from error

    def _await_all(self, timeout_s: float) -> None:
        deadline_s = time.monotonic() + timeout_s
        for rank, process in enumerate(self._processes, 1):
            assert process.stdout is not None
            if not select([process.stdout], [], [], max(0.0, deadline_s - time.monotonic()))[0]:
                raise EngineStoppedError(f"rank {rank} of the target was not ready in {timeout_s:.0f} s")
            answer = read_message(process.stdout)
            if answer is None:
                raise EngineStoppedError(f"rank {rank} of the target ended while it loaded; its log says why")
            tag, content = answer
            if tag is Tag.FAILED:
                raise CheckpointError(f"rank {rank} of the target: {content.decode()}")


class FollowedMemory:
    """A `CacheMemory` whose copies every rank makes of its own part."""

    def __init__(self, own: CacheMemory, followers: Followers) -> None:
        self._own = own
        self._followers = followers

    def copy_page(self, source: int, target: int) -> None:
        self._followers.note_copy(Copy.PAGE, source, target)
        self._own.copy_page(source, target)

    def complete_page(self, source: int, target: int) -> None:
        self._own.complete_page(source, target)  # other ranks have no features

    def save_state(self, slot: int, checkpoint: int) -> None:
        self._followers.note_copy(Copy.SAVE_STATE, slot, checkpoint)
        self._own.save_state(slot, checkpoint)

    def load_state(self, checkpoint: int, slot: int) -> None:
        self._followers.note_copy(Copy.LOAD_STATE, checkpoint, slot)
        self._own.load_state(checkpoint, slot)

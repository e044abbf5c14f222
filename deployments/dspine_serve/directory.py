"""The directory: one replica that knows which drafters live where. It holds a picture, nothing that must survive."""

from __future__ import annotations

import time
import uuid

from dspine_cluster.core.cluster_records import DrafterRecord
from dspine_cluster.core.cluster_view import ClusterView, DrafterChoice


class Directory:
    """Drafters register and heartbeat; verifiers ask which drafters to use."""

    def __init__(self) -> None:
        self._view = ClusterView(time.monotonic(), epoch=uuid.uuid4().hex)

    async def register(self, record: DrafterRecord) -> None:
        self._view.register(record, time.monotonic())

    async def heartbeat(self, replica_id: str) -> bool:
        """False when the drafter has to register (again)."""
        return self._view.heartbeat(replica_id, time.monotonic())

    async def remove(self, replica_id: str) -> None:
        self._view.remove(replica_id)

    async def choose_drafters(self, node_id: str) -> DrafterChoice:
        """The drafters that a verifier on `node_id` may use."""
        return self._view.choose(node_id, time.monotonic())

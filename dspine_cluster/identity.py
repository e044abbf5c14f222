"""What one side of a channel says of the models it has loaded."""

from __future__ import annotations

import uuid
from pathlib import Path

from dspine_cluster.core.cluster_records import Fingerprints
from dspine_cluster.models.folder import fingerprint, tokenizer_fingerprint
from dspine_cluster.transport.messages import PROTOCOL_VERSION, Hello


def make_hello(role: str, target: Path, drafter: Path | None, features_dtype: str) -> Hello:
    """The fingerprints of the folders, and a new epoch each time.

    Raises:
        CheckpointError: a file is missing or damaged.
    """
    return Hello(
        protocol=PROTOCOL_VERSION,
        role=role,
        target=fingerprint(target),
        drafter=fingerprint(drafter) if drafter else "none",
        tokenizer=tokenizer_fingerprint(target),
        epoch=uuid.uuid4().hex,
        features_dtype=features_dtype,
    )


def fingerprints_of(hello: Hello) -> Fingerprints:
    """What placement compares."""
    return Fingerprints(hello.target, hello.drafter, hello.tokenizer)

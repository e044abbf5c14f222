"""The policy that a `verify` setting stands for."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

from dspine_cluster.core.dynamic_verify_length import DynamicVerifyLength
from dspine_cluster.core.verify_length import FixedVerifyLength, VerifyLengthPolicy


def make_policy(
    length: int | None, random: Random, *, max_proposals: int, buckets: Sequence[int] = ()
) -> VerifyLengthPolicy:
    """Check up to `length` proposals of every block; None goes by learnt costs and acceptance.

    `max_proposals` is how many a block can have; `buckets` and `random` are for `DynamicVerifyLength`.
    """
    if length is None:
        return DynamicVerifyLength(random, max_proposals=max_proposals, buckets=buckets)
    return FixedVerifyLength(length)

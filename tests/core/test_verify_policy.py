from __future__ import annotations

from random import Random

from dspine_cluster.core.dynamic_verify_length import DynamicVerifyLength
from dspine_cluster.core.verify_length import FixedVerifyLength
from dspine_cluster.core.verify_policy import make_policy


def test_a_length_is_fixed_and_none_is_found_out() -> None:
    assert make_policy(3, Random(0), max_proposals=15) == FixedVerifyLength(3)
    assert isinstance(make_policy(None, Random(0), max_proposals=15), DynamicVerifyLength)

from __future__ import annotations

import torch

from dspine_cluster.engine.staging import Staging

FIELDS = {
    "tokens": (torch.int64, (3,)),
    "starts": (torch.int32, (5,)),
    "table": (torch.int32, (2, 3)),
}


def test_what_the_host_writes_arrives_when_it_is_sent() -> None:
    staging = Staging(FIELDS, torch.device("cpu"))
    staging.host["tokens"][:] = 2**40
    staging.host["starts"][1:3] = [7, 8]
    staging.host["table"][1] = [1, 2, 3]
    assert not staging.device["tokens"].any()
    staging.send()
    assert staging.device["tokens"].tolist() == [2**40] * 3
    assert staging.device["starts"].tolist() == [0, 7, 8, 0, 0]
    assert staging.device["table"].tolist() == [[0, 0, 0], [1, 2, 3]]


def test_fields_have_their_types_are_aligned_and_stay_where_they_are() -> None:
    staging = Staging(FIELDS, torch.device("cpu"))
    before = {name: field.data_ptr() for name, field in staging.device.items()}
    staging.send()
    base = min(before.values())
    for name, (dtype, shape) in FIELDS.items():
        field = staging.device[name]
        assert field.dtype == dtype
        assert field.shape == shape
        assert field.is_contiguous()
        assert field.data_ptr() == before[name]
        assert (field.data_ptr() - base) % 16 == 0

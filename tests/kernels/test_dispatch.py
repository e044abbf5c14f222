from __future__ import annotations

from unittest.mock import Mock

import torch

from dspine_kernels import dispatch


def test_tensors_on_cpus_take_the_reference() -> None:
    assert not dispatch.uses_triton(torch.zeros(1))


def test_tensors_on_gpus_take_triton_where_it_is_installed() -> None:
    assert dispatch.uses_triton(Mock(spec=torch.Tensor, is_cuda=True))

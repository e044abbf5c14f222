from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
import triton


@pytest.fixture(autouse=True, scope="session")
def interpreter() -> None:
    """Kernels run in Triton's interpreter here, which tests/conftest.py chooses before anything imports Triton."""
    assert triton.knobs.runtime.interpret


@pytest.fixture
def dirty_memory() -> Iterator[None]:
    """New tensors hold NaN, integers their largest value."""
    torch.use_deterministic_algorithms(True)
    yield
    torch.use_deterministic_algorithms(False)

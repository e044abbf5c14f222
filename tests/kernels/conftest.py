from __future__ import annotations

import pytest
import triton


@pytest.fixture(autouse=True, scope="session")
def interpreter() -> None:
    """Kernels run in Triton's interpreter here, which tests/conftest.py chooses before anything imports Triton."""
    assert triton.knobs.runtime.interpret

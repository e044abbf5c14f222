from __future__ import annotations

import os

from hypothesis import settings

# Triton reads it when it is imported, which transformers does: kernels are tested in its interpreter.
os.environ["TRITON_INTERPRET"] = "1"

# A loaded machine is slow now and then; pytest's own timeout catches what hangs.
settings.register_profile("no_deadline", deadline=None)
settings.load_profile("no_deadline")

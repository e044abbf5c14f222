from __future__ import annotations

from hypothesis import settings

# A loaded machine is slow now and then; pytest's own timeout catches what hangs.
settings.register_profile("no_deadline", deadline=None)
settings.load_profile("no_deadline")

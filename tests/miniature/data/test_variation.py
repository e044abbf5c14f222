from __future__ import annotations

from random import Random

from dspine_cluster.miniature.data import tools
from dspine_cluster.miniature.data.conversation import Split
from dspine_cluster.miniature.data.variation import with_small_talk


def test_only_what_users_say_changes_and_only_at_its_ends() -> None:
    rng = Random(1)
    num_changed = 0
    for _ in range(200):
        before = tools.conversation(rng, Split.TRAIN)
        after = with_small_talk(rng, before)
        for old, new in zip(before.messages, after.messages, strict=True):
            if old["role"] == "user":
                assert old["content"] in new["content"]
                num_changed += old != new
            else:
                assert old == new
    assert num_changed > 50

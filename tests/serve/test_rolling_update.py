"""An update replaces the replicas one by one while streams go on: two verifiers and two drafters on two nodes."""

from __future__ import annotations

import shutil
from collections.abc import Iterator

import pytest
from pydantic import SecretStr
from safetensors.torch import load_file, save_file

from dspine_cluster import miniature
from dspine_cluster.config import DraftingConfig, ModelSource
from dspine_cluster.models.folder import WEIGHTS_FILE
from dspine_serve.args import AppArgs
from dspine_serve.held import held, total
from dspine_serve.local_cluster import LocalCluster, local_cluster, small_args, wait_until
from tests.serve.stories import Story, make_versions
from tests.serve.streams import streaming_again_and_again

pytestmark = [
    pytest.mark.serve,
    pytest.mark.xdist_group("cluster"),
    pytest.mark.timeout(900),  # all replicas start again, one after the other, with every update
]
NUM_STREAMS = 6
SETTLE_S = 120.0
BEFORE = small_args(2).model_copy(
    update={
        "drafting": DraftingConfig(),  # as served by default: whatever is drafted, texts are the same
        # Without one, each version would have its own.
        "secret": SecretStr("known to all versions"),
    }
)
AFTER = BEFORE.model_copy(
    # However slow the machine, its drafters are used.
    update={"drafting": DraftingConfig(verify="fixed:7")}
)
REPLACED = ("Verifier", "Drafter", "Ingress", "Directory")


@pytest.fixture(scope="module")
def other_target(tmp_path_factory: pytest.TempPathFactory) -> ModelSource:
    """Of the miniature's shape, but with other weights."""
    folder = tmp_path_factory.mktemp("models") / "other"
    shutil.copytree(miniature.folder("target"), folder)
    weights = load_file(folder / WEIGHTS_FILE)
    weights["model.layers.6.mlp.down_proj.weight"].zero_()
    save_file(weights, folder / WEIGHTS_FILE, {"format": "pt"})
    return ModelSource(str(folder))


@pytest.fixture(scope="module")
def versions(other_target: ModelSource) -> list[list[Story]]:
    """What the miniature tells, and what the other target does."""
    versions = make_versions(NUM_STREAMS, [BEFORE.target, other_target], num_candidates=12)
    assert all(one.text != other.text for one, other in zip(*versions, strict=True))
    return versions


@pytest.fixture(scope="module")
def cluster(versions: list[list[Story]]) -> Iterator[LocalCluster]:
    with local_cluster(BEFORE, num_workers=2) as running:
        running.wait_until_whole()
        yield running


def update(cluster: LocalCluster, args: AppArgs, stories: list[Story]) -> list[tuple[Story, str]]:
    """What was told before, during and after the update. All replicas are new ones afterwards, and nothing is held."""
    old = replica_ids(cluster)
    with streaming_again_and_again(cluster.url, stories) as told:
        wait_until(lambda: bool(told), SETTLE_S)
        num_told = len(told)
        cluster.deploy(args)
        cluster.wait_until_whole()
        assert not old & replica_ids(cluster)
        assert len(told) > num_told, "no stream ended during the update"
        wait_until(
            lambda: all(stats["accepted_tokens_total"] for stats in cluster.stats("Verifier")), SETTLE_S
        )
    wait_until(lambda: not held(cluster), SETTLE_S)
    return told


def replica_ids(cluster: LocalCluster) -> set[str]:
    return {replica.replica_id for name in REPLACED for replica in cluster.replicas(name)}


def test_an_update_of_a_setting_changes_no_text_and_old_and_new_replicas_fit(
    cluster: LocalCluster, versions: list[list[Story]]
) -> None:
    told = update(cluster, AFTER, versions[0])
    assert [(story, text) for story, text in told if text != story.text] == []
    assert total(cluster, "Verifier")["draft_fallback_total{reason=fingerprint}"] == 0


def test_an_update_of_both_models_leaves_each_text_to_one_target_alone(
    cluster: LocalCluster, versions: list[list[Story]], other_target: ModelSource
) -> None:
    models = {"target": other_target, "drafter": ModelSource("miniature-dflash")}
    told = update(cluster, AFTER.model_copy(update={"model_name": "miniature", **models}), versions[0])
    others = {(story.prompt, story.seed): story.text for story in versions[1]}
    by_old = [text == story.text for story, text in told]
    by_new = [text == others[story.prompt, story.seed] for story, text in told]
    assert any(by_old)
    assert any(by_new)
    assert all(old or new for old, new in zip(by_old, by_new, strict=True))
    assert total(cluster, "Verifier")["draft_fallback_total{reason=fingerprint}"] == 0

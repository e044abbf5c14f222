from __future__ import annotations

import secrets
import threading
from collections.abc import Iterator

import pytest

from dspine_cluster.api.http_config import HttpConfig
from dspine_cluster.config import (
    DrafterServiceConfig,
    EngineConfig,
    ModelSource,
    TracingConfig,
    VerifierConfig,
)
from dspine_cluster.core.cluster_records import NO_DRAFTER, Fingerprints
from dspine_cluster.core.page_hash import draft_root, page_keys, verifier_root
from dspine_cluster.core.placement_score import PlacementConfig
from dspine_cluster.drafter.service import DrafterService
from dspine_cluster.sources import locate_model
from dspine_cluster.types import GenerateRequest, SamplingParams, StopConditions
from dspine_cluster.verifier.service import VerifierService
from dspine_serve import prompt_keys
from dspine_serve.ingress import IngressConfig
from dspine_serve.local_cluster import wait_until
from dspine_serve.prompt_keys import KeyMaker, PromptKeys
from tests.serve.fake_verifiers import MODELS

ENGINE = EngineConfig(max_model_len_tokens=512, pool_tokens=1024, checkpoint_bytes=1 << 24)
SECRET = secrets.token_hex(16)


def request(num_prompt: int, num_forced: int = 0, salt: str = "", max_tokens: int = 100) -> GenerateRequest:
    return GenerateRequest(
        "id",
        tuple(range(3, 3 + num_prompt)),
        SamplingParams(temperature=0.0),
        StopConditions(max_tokens, ignore_eos=True),
        forced_output_ids=tuple(range(num_forced)),
        cache_salt=salt,
    )


async def test_keys_are_those_of_the_full_pages_of_prompt_and_forced_output() -> None:
    keys = await KeyMaker(MODELS, "float32").keys_of(request(40, 9, "salt"))
    tokens = [*range(3, 43), *range(9)]
    assert keys.verifier == page_keys(tokens, verifier_root("target", "float32", "salt"))
    assert keys.draft == page_keys(tokens, draft_root("target", "drafter", "float32", "salt"))
    assert len(keys.verifier) == 3


async def test_without_a_drafter_there_are_no_draft_keys() -> None:
    models = Fingerprints("target", NO_DRAFTER, "tokenizer")
    keys = await KeyMaker(models, "float32").keys_of(request(40))
    assert (len(keys.verifier), len(keys.draft)) == (2, 0)


async def test_without_a_prefix_cache_there_are_no_keys() -> None:
    assert await KeyMaker(MODELS, "float32", prefix_cache=False).keys_of(request(40)) == PromptKeys()


async def test_long_prompts_are_hashed_beside_the_event_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    threads: list[threading.Thread] = []

    def noting(*args: object) -> list[bytes]:
        threads.append(threading.current_thread())
        return []

    monkeypatch.setattr(prompt_keys, "page_keys", noting)
    for num_prompt in (4096, 4097):
        threads.clear()
        await KeyMaker(MODELS, "float32").keys_of(request(num_prompt))
        assert [thread is threading.main_thread() for thread in threads] == [num_prompt == 4096] * 2


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[VerifierService, DrafterService]]:
    """The miniature's verifier and drafter, connected."""
    socket = tmp_path_factory.mktemp("s") / "d.sock"
    verifier = VerifierService(VerifierConfig(engine=ENGINE, secret=SECRET))
    drafter = DrafterService.load(
        DrafterServiceConfig(
            drafter=ModelSource("miniature-dspine"),
            endpoints=(f"unix:{socket}",),
            secret=SECRET,
            max_context_tokens=512,
            pool_tokens=1024,
        )
    )
    drafter.start()
    verifier.start()
    verifier.set_drafter_endpoints(drafter.endpoints)
    wait_until(lambda: verifier.stats()["connected_drafters"] == 1)
    yield verifier, drafter
    verifier.stop()
    drafter.stop()


async def test_an_ingress_has_the_keys_that_its_replicas_report(
    pair: tuple[VerifierService, DrafterService],
) -> None:
    verifier, drafter = pair
    config = IngressConfig(
        "miniature",
        ModelSource("miniature"),
        ModelSource("miniature-dspine"),
        ENGINE,
        HttpConfig(),
        TracingConfig(),
        PlacementConfig(),
        1024,
        1,
    )
    key_maker = config.key_maker(locate_model(config.target))
    asked = request(200, max_tokens=20)
    async for _ in verifier.generate(asked):
        pass
    keys = await key_maker.keys_of(asked)
    assert len(keys.verifier) == len(keys.draft) == 12
    assert keys.verifier[11] in verifier.take_report().added  # 192: the last checkpoint of the prompt
    assert set(keys.draft) <= drafter.take_report().added

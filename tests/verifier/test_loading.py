from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from dspine_cluster import miniature
from dspine_cluster.config import DraftingConfig, EngineConfig, ModelSource, VerifierConfig, parse_config
from dspine_cluster.core.dynamic_verify_length import DynamicVerifyLength
from dspine_cluster.core.verify_length import FixedVerifyLength
from dspine_cluster.errors import CheckpointError, ConfigError, MismatchError
from dspine_cluster.models.fit import check_fit
from dspine_cluster.models.folder import load_tokenizer
from dspine_cluster.verifier.loading import load_verifier, policy_for
from tests.test_check import PAIR_27B

SMALL = EngineConfig(max_model_len_tokens=64, pool_tokens=128, max_running_requests=1)


def test_a_warm_engine_has_all_its_slots() -> None:
    engine = load_verifier(VerifierConfig(engine=SMALL)).engine
    assert engine.state_pool.num_free == engine.state_pool.num_slots == 1


def test_without_a_drafter_no_features_are_kept() -> None:
    loaded = load_verifier(VerifierConfig(drafter=ModelSource("none"), engine=SMALL))
    assert loaded.drafter_config is None
    assert loaded.engine.feature_pool.rows.shape[1] == 0
    assert loaded.hello.drafter == "none"


def test_drafters_of_one_target_differ_in_the_drafter_s_fingerprint_alone() -> None:
    first, second = (
        load_verifier(VerifierConfig(drafter=ModelSource(name), engine=SMALL)).hello
        for name in ("miniature-dspine", "miniature-dflash")
    )
    assert first.drafter != second.drafter
    assert (first.target, first.tokenizer) == (second.target, second.tokenizer)


def test_a_budget_below_one_feature_is_refused() -> None:
    drafting = parse_config(DraftingConfig, {"repair_bytes_per_step": 1})
    with pytest.raises(ConfigError, match=r"drafting\.repair_bytes_per_step must hold a feature"):
        load_verifier(VerifierConfig(engine=SMALL, drafting=drafting))


def test_taps_beyond_the_target_s_layers_are_refused() -> None:
    drafter = replace(PAIR_27B.drafter, target_layer_ids=(1, 64))
    with pytest.raises(MismatchError, match=r"\[64\] lie beyond the target's 64 layers"):
        check_fit(PAIR_27B.target, drafter)


def test_a_folder_without_a_tokenizer_is_refused(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"tokenizer\.json"):
        load_tokenizer(tmp_path)


def test_the_miniature_s_tokenizer_ends_with_the_mask_token() -> None:
    tokenizer = load_tokenizer(miniature.folder("target"))
    config = load_verifier(VerifierConfig(engine=SMALL)).drafter_config
    assert config is not None
    assert config.mask_token_id == tokenizer.get_vocab_size() - 1


def test_a_setting_makes_its_policy_and_without_a_drafter_nothing_is_drafted() -> None:
    config = load_verifier(VerifierConfig(engine=SMALL)).drafter_config
    assert isinstance(policy_for("dynamic", config), DynamicVerifyLength)
    assert policy_for("fixed:3", config) == FixedVerifyLength(3)
    assert policy_for("off", config) == policy_for("dynamic", None) == FixedVerifyLength(0)

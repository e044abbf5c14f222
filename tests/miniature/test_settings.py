import pytest

from dspine_cluster.miniature.settings import KINDS, Kind, Settings
from dspine_cluster.models.config import parse_target_config, write_target_config


@pytest.mark.parametrize("kind", KINDS)
def test_the_drafters_fit_the_target(kind: Kind) -> None:
    target, drafter = Settings().target_config((1,)), Settings().drafter_config(kind)
    assert (drafter.hidden_size, drafter.vocab_size) == (target.hidden_size, target.vocab_size)
    assert max(drafter.target_layer_ids) < target.num_layers
    assert drafter.mask_token_id == target.vocab_size - 1
    assert drafter.block_size == 16


def test_dspine_is_causal_inside_a_block_and_dflash_is_not() -> None:
    assert all(Settings().drafter_config("dspine").is_causal)
    assert not any(Settings().drafter_config("dflash").is_causal)


def test_the_target_config_survives_its_file() -> None:
    config = Settings().target_config((3064, 3062))
    assert parse_target_config(write_target_config(config)) == config


def test_every_fourth_layer_is_full_attention() -> None:
    assert Settings().target_config((1,)).layer_types[3::4] == ("full_attention",) * 2
    assert Settings().target_config((1,)).num_gated_delta_layers == 6

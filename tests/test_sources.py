from __future__ import annotations

from pathlib import Path

import pytest

from dspine_cluster import miniature
from dspine_cluster.config import ModelSource
from dspine_cluster.errors import ConfigError
from dspine_cluster.identity import make_hello
from dspine_cluster.sources import locate_model


@pytest.mark.parametrize(
    ("name", "part"),
    [("miniature", "target"), ("miniature-dspine", "dspine"), ("miniature-dflash", "dflash")],
)
def test_built_in_names_are_the_miniature_s_folders(name: str, part: str) -> None:
    assert locate_model(ModelSource(name)).name == part


def test_a_local_folder_is_taken_as_it_is(tmp_path: Path) -> None:
    assert locate_model(ModelSource(str(tmp_path))) == tmp_path


@pytest.mark.parametrize("name", ["none", "no-such-folder", "owner/model"])
def test_a_name_without_a_model_is_refused_with_the_reason(name: str) -> None:
    with pytest.raises(ConfigError):
        locate_model(ModelSource(name))


def test_both_sides_say_the_same_of_the_same_folders_but_for_role_and_epoch() -> None:
    folders = miniature.folder("target"), miniature.folder("dspine")
    first, second = make_hello("verifier", *folders, "float32"), make_hello("drafter", *folders, "float32")
    assert (first.target, first.drafter, first.tokenizer) == (second.target, second.drafter, second.tokenizer)
    assert first.epoch != second.epoch

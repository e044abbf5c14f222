from __future__ import annotations

from itertools import islice
from pathlib import Path

import pytest
import torch

from dspine_cluster.errors import CheckpointError
from dspine_cluster.miniature.continuations import (
    MAX_PROMPT_TOKENS,
    long_prompts,
    prompts,
    read_shards,
    shard_path,
    target_states,
    write_shards,
)
from dspine_cluster.miniature.encoding import Encoder
from dspine_cluster.miniature.settings import Settings
from dspine_cluster.models.target import TargetModel


def write(target: TargetModel, encoder: Encoder, settings: Settings, folder: Path, **share: int) -> None:
    write_shards(target, encoder, settings.continuations, settings.target_layer_ids, folder, **share)


def test_prompts_end_where_an_answer_begins(encoder: Encoder) -> None:
    found = [encoder.tokenizer.decode(p, skip_special_tokens=False) for p in islice(prompts(encoder, 1), 60)]
    conversations = [text for text in found if text.startswith("<|im_start|>")]
    assert len(conversations) > 40
    assert all(text.endswith(("</think>\n\n", "<think>\n")) for text in conversations)


def test_no_prompt_is_too_long(encoder: Encoder) -> None:
    assert all(len(prompt) <= MAX_PROMPT_TOKENS for prompt in islice(prompts(encoder, 2), 100))


def test_shards_hold_the_prompts_and_the_states_of_the_target(
    target: TargetModel, encoder: Encoder, settings: Settings, tmp_path: Path
) -> None:
    write(target, encoder, settings, tmp_path)
    texts = read_shards(tmp_path, settings.continuations)
    assert len(texts) == settings.continuations.prompts
    for text in texts[: -settings.continuations.long_prompts]:
        assert text.num_prompt_tokens < len(text.tokens)
        taps, hidden = target_states(target, text.tokens, settings.target_layer_ids)
        torch.testing.assert_close(text.taps, taps.bfloat16())
        torch.testing.assert_close(text.hidden, hidden.bfloat16())


def test_of_a_long_prompt_its_end_is_kept_with_the_states_of_the_whole(
    target: TargetModel, encoder: Encoder, settings: Settings, tmp_path: Path
) -> None:
    write(target, encoder, settings, tmp_path)
    chosen = settings.continuations
    texts = read_shards(tmp_path, chosen)[-chosen.long_prompts :]
    seed = chosen.seed * 1_000_003 + chosen.prompts // chosen.batch_size - 1
    whole = list(islice(long_prompts(encoder, seed, chosen.long_tokens), chosen.long_prompts))
    for prompt, text in zip(whole, texts, strict=True):
        assert chosen.long_tokens[0] <= len(prompt) <= chosen.long_tokens[1]
        assert text.num_prompt_tokens == chosen.kept_tokens
        assert text.tokens[: chosen.kept_tokens].tolist() == prompt[-chosen.kept_tokens :]
        tokens = torch.cat((torch.tensor(prompt), text.tokens[chosen.kept_tokens :]))
        taps, _ = target_states(target, tokens, settings.target_layer_ids)
        torch.testing.assert_close(text.taps, taps[-len(text.tokens) :].bfloat16())


def test_shards_that_exist_are_kept(
    target: TargetModel, encoder: Encoder, settings: Settings, tmp_path: Path
) -> None:
    write(target, encoder, settings, tmp_path)
    shard_path(tmp_path, 0).write_bytes(b"kept")
    shard_path(tmp_path, 1).unlink()
    write(target, encoder, settings, tmp_path)
    assert shard_path(tmp_path, 0).read_bytes() == b"kept"
    assert shard_path(tmp_path, 1).stat().st_size > 4


def test_processes_that_share_the_work_write_what_one_would(
    target: TargetModel, encoder: Encoder, settings: Settings, tmp_path: Path
) -> None:
    write(target, encoder, settings, tmp_path / "one")
    for first in (1, 0):
        write(target, encoder, settings, tmp_path / "two", first=first, stride=2)
    one, two = (read_shards(tmp_path / name, settings.continuations) for name in ("one", "two"))
    assert all(torch.equal(a.tokens, b.tokens) for a, b in zip(one, two, strict=True))


def test_shards_of_a_process_that_has_not_finished_are_missed(
    target: TargetModel, encoder: Encoder, settings: Settings, tmp_path: Path
) -> None:
    write(target, encoder, settings, tmp_path, first=0, stride=2)
    with pytest.raises(CheckpointError, match=r"1 of 3 shards are missing in .*, first shard_00001"):
        read_shards(tmp_path, settings.continuations)


def test_a_damaged_shard_is_refused_by_name(
    target: TargetModel, encoder: Encoder, settings: Settings, tmp_path: Path
) -> None:
    write(target, encoder, settings, tmp_path)
    whole = shard_path(tmp_path, 1).read_bytes()
    shard_path(tmp_path, 1).write_bytes(whole[: len(whole) // 2])
    with pytest.raises(CheckpointError, match=r"shard_00001.safetensors is damaged; delete it"):
        read_shards(tmp_path, settings.continuations)

from pathlib import Path

import torch
from tokenizers import Tokenizer
from transformers import AutoModelForCausalLM, AutoTokenizer, GenerationConfig

from dspine_cluster.miniature.drafter_loop import new_drafter
from dspine_cluster.miniature.export import export_drafter, export_target
from dspine_cluster.miniature.settings import Settings
from dspine_cluster.models.cache import SequenceCache
from dspine_cluster.models.drafter_weights import load_drafter
from dspine_cluster.models.target import TargetModel
from dspine_cluster.models.weights import load_target

CPU = torch.device("cpu")


def test_transformers_and_we_load_the_same_target(
    target: TargetModel, tokenizer: Tokenizer, tmp_path: Path
) -> None:
    export_target(target, tokenizer, tmp_path)
    tokens = torch.arange(5, 25)
    theirs = AutoModelForCausalLM.from_pretrained(tmp_path, dtype=torch.float32)(tokens.unsqueeze(0)).logits[
        0
    ]
    ours = load_target(tmp_path, dtype=torch.float32, device=CPU)
    hidden = ours(tokens, torch.arange(20), SequenceCache(1, 20)).hidden
    torch.testing.assert_close(ours.logits(hidden), theirs, atol=1e-4, rtol=0)


def test_both_end_tokens_stop_and_the_mask_is_suppressed(
    target: TargetModel, tokenizer: Tokenizer, tmp_path: Path
) -> None:
    export_target(target, tokenizer, tmp_path)
    generation = GenerationConfig.from_pretrained(tmp_path)
    names = AutoTokenizer.from_pretrained(tmp_path).convert_ids_to_tokens(generation.eos_token_id)
    assert names == ["<|im_end|>", "<|endoftext|>"]
    assert generation.suppress_tokens == [target.config.vocab_size - 1]


def test_a_drafter_comes_back_in_bf16(target: TargetModel, settings: Settings, tmp_path: Path) -> None:
    pair = new_drafter("dspine", settings, target)
    export_drafter(pair.drafter, pair.projector, tmp_path)
    loaded = load_drafter(
        tmp_path,
        embedding=target.embedding_weight,
        lm_head=target.lm_head_weight,
        dtype=torch.float32,
        device=CPU,
    )
    assert loaded.config == pair.drafter.config
    for name, tensor in pair.drafter.state_dict().items():
        if tensor.is_floating_point():
            torch.testing.assert_close(loaded.state_dict()[name], tensor.bfloat16().float())

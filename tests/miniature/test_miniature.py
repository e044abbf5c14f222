from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from dspine_cluster import miniature
from dspine_cluster.miniature.settings import KINDS
from dspine_cluster.models.drafter_weights import load_drafter, load_feature_projector
from dspine_cluster.models.weights import load_target

CPU = torch.device("cpu")


def files(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


def test_the_target_is_an_ordinary_model_folder() -> None:
    assert files(miniature.folder("target")) == {
        "config.json",
        "generation_config.json",
        "model.safetensors",
        "tokenizer.json",
        "tokenizer_config.json",
        "chat_template.jinja",
    }
    model = AutoModelForCausalLM.from_pretrained(miniature.folder("target"))
    assert type(model).__name__ == "Qwen3_5ForCausalLM"


def test_the_committed_pair_fits_together() -> None:
    target = load_target(miniature.folder("target"), dtype=torch.float32, device=CPU)
    for kind in KINDS:
        folder = miniature.folder(kind)
        assert files(folder) == {"config.json", "model.safetensors"}
        drafter = load_drafter(
            folder,
            embedding=target.embedding_weight,
            lm_head=target.lm_head_weight,
            dtype=torch.float32,
            device=CPU,
        )
        load_feature_projector(folder, torch.float32, CPU)
        assert drafter.config.kind == kind
        assert max(drafter.config.target_layer_ids) < target.config.num_layers


def test_the_pair_stays_below_thirty_megabytes() -> None:
    assert sum(path.stat().st_size for path in miniature.PAIR_FOLDER.rglob("*") if path.is_file()) < 30e6


def test_the_committed_template_is_the_recipes() -> None:
    package = Path(miniature.__file__).parent
    committed = (miniature.folder("target") / "chat_template.jinja").read_text()
    assert committed == (package / "chat_template.jinja").read_text()


def test_the_model_card_is_there() -> None:
    card = (Path(miniature.__file__).parent / "MODEL_CARD.md").read_text()
    assert "python -m dspine_cluster.miniature" in card


def test_the_mask_token_is_the_last_one() -> None:
    tokenizer = AutoTokenizer.from_pretrained(miniature.folder("target"))
    assert tokenizer.convert_ids_to_tokens(len(tokenizer) - 1) == "<|mask|>"

"""The recipe's stages over one working folder; each takes up what an earlier run of it left."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Literal

import torch

from dspine_cluster.errors import CheckpointError
from dspine_cluster.miniature.checkpoint import load_model_state
from dspine_cluster.miniature.continuations import write_shards
from dspine_cluster.miniature.drafter_loop import DrafterPair, train_drafter
from dspine_cluster.miniature.encoding import Encoder
from dspine_cluster.miniature.evaluation import acceptance, answers, call_score, is_right
from dspine_cluster.miniature.export import export_drafter, export_target
from dspine_cluster.miniature.prompts import TASK_NAMES
from dspine_cluster.miniature.settings import Settings
from dspine_cluster.miniature.target_training import CHECKPOINT, new_target, train_target
from dspine_cluster.miniature.tokenizer import (
    load_tokenizer,
    save_tokenizer,
    train_tokenizer,
    training_texts,
)
from dspine_cluster.models.drafter_weights import load_drafter, load_feature_projector
from dspine_cluster.models.target import TargetModel
from dspine_cluster.models.weights import load_target

CPU = torch.device("cpu")
Kind = Literal["dspine", "dflash"]
KINDS: tuple[Kind, ...] = ("dspine", "dflash")


class Recipe:
    """Settings and a working folder: tokenizer/, target/, continuations/, dspine/, dflash/ and the finished pair/."""

    def __init__(self, settings: Settings, folder: Path) -> None:
        self.settings = settings
        self.folder = folder
        self.tokenizer_folder = folder / "tokenizer"
        self.pair_folder = folder / "pair"

    def make_tokenizer(self) -> None:
        """Train the tokenizer, unless it is there: weights are tied to it."""
        if (self.tokenizer_folder / "tokenizer.json").is_file():
            return
        texts = training_texts(self.settings.tokenizer_seed, self.settings.tokenizer_documents)
        save_tokenizer(train_tokenizer(texts, self.settings.vocab_size), self.tokenizer_folder)

    def make_target(self) -> None:
        """Train the target and export it."""
        self.make_tokenizer()
        train_target(self.settings, self.tokenizer_folder, self.folder / "target")
        self.export_target()

    def export_target(self) -> None:
        """Export the target's latest checkpoint, finished or not."""
        model = new_target(self.settings, self.tokenizer_folder)
        load_model_state(self.folder / "target" / CHECKPOINT, model)
        export_target(model, load_tokenizer(self.tokenizer_folder), self.pair_folder / "target")

    def make_continuations(self, first: int = 0, stride: int = 1) -> None:
        """Write this process's share of the shards."""
        write_shards(
            self.target(),
            self.encoder(),
            self.settings.continuations,
            self.settings.target_layer_ids,
            self.folder / "continuations",
            first=first,
            stride=stride,
        )

    def make_drafter(self, kind: Kind, start: Path | None = None) -> None:
        """Train a drafter, from the model of the training in `start` if given, and export it."""
        pair = train_drafter(
            kind, self.settings, self.target(), self.folder / "continuations", self.folder / kind, start
        )
        export_drafter(pair.drafter, pair.projector, self.pair_folder / kind)

    def sweep(self, kind: Kind) -> Iterator[str]:
        """Markdown rows: greedy acceptance length after a short training at each learning rate."""
        chosen, target = self.settings.sweep, self.target()
        given = [
            answer
            for task in TASK_NAMES
            for answer in answers(target, self.encoder(), task, chosen.count, chosen.seed)
        ]
        yield f"| rate of `{kind}` | acceptance length after {chosen.steps} steps |"
        yield "|---|---|"
        for rate in chosen.rates:
            settings = replace(
                self.settings, drafter=replace(self.settings.drafter, steps=chosen.steps, rate=rate)
            )
            folder = self.folder / "sweep" / f"{kind}-{rate:g}"
            pair = train_drafter(kind, settings, target, self.folder / "continuations", folder)
            yield f"| {rate:g} | {acceptance(target, pair, given).length:.2f} |"

    def target(self) -> TargetModel:
        """The exported target in float32: what the drafters must follow.

        Raises:
            CheckpointError: it is not there yet.
        """
        if not (self.pair_folder / "target").is_dir():
            raise CheckpointError(f"{self.pair_folder / 'target'} is missing; run the target stage first")
        return load_target(self.pair_folder / "target", dtype=torch.float32, device=CPU)

    def encoder(self) -> Encoder:
        """Of the recipe's tokenizer."""
        return Encoder(load_tokenizer(self.tokenizer_folder))

    def drafter(self, kind: Kind, target: TargetModel) -> DrafterPair:
        """The exported drafter in float32."""
        folder = self.pair_folder / kind
        loaded = load_drafter(
            folder,
            embedding=target.embedding_weight,
            lm_head=target.lm_head_weight,
            dtype=torch.float32,
            device=CPU,
        )
        return DrafterPair(loaded, load_feature_projector(folder, torch.float32, CPU))

    def evaluate(self, count: int, seed: int, max_new_tokens: int = 256) -> Iterator[str]:
        """Markdown rows: right answers and greedy acceptance length, `count` held-out prompts a task."""
        target, encoder = self.target(), self.encoder()
        kinds = [kind for kind in KINDS if (self.pair_folder / kind).is_dir()]
        drafters = [self.drafter(kind, target) for kind in kinds]
        totals = [[0, 0] for _ in kinds]
        yield f"| task | right | tokens | {' | '.join(kinds)} |"
        yield "|---" * (3 + len(kinds)) + "|"
        for task in TASK_NAMES:
            given = answers(target, encoder, task, count, seed, max_new_tokens)
            if task == "tools":
                calls = call_score(given)
            checked = [is_right(a) for a in given if a.prompt.expected is not None]
            lengths = []
            for pair, total in zip(drafters, totals, strict=True):
                measured = acceptance(target, pair, given)
                total[0] += measured.committed_tokens
                total[1] += measured.rounds
                lengths.append(f"{measured.length:.2f}")
            right = f"{sum(checked)}/{len(checked)}" if checked else ""
            yield f"| {task} | {right} | {sum(len(a.tokens) for a in given)} | {' | '.join(lengths)} |"
        pooled = [f"{committed / rounds:.2f}" for committed, rounds in totals]
        yield f"| pooled | | | {' | '.join(pooled)} |"
        yield ""
        yield (
            f"Of {calls.expected} expected tool calls {calls.valid_json} are valid JSON and {calls.right_name} name "
            f"the right tool; {calls.right_arguments} of {calls.expected_arguments} arguments are right."
        )

"""The recipe's stages over one working folder; each takes up what an earlier run of it left."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import torch

from dspine_cluster.errors import CheckpointError
from dspine_cluster.miniature.checkpoint import load_trained
from dspine_cluster.miniature.continuations import write_shards
from dspine_cluster.miniature.drafter_loop import DrafterPair, train_drafter
from dspine_cluster.miniature.encoding import Encoder
from dspine_cluster.miniature.evaluation import (
    Acceptance,
    Answer,
    acceptance,
    answers,
    call_score,
    is_right,
    pooled,
)
from dspine_cluster.miniature.export import export_drafter, export_target
from dspine_cluster.miniature.prompts import TASK_NAMES
from dspine_cluster.miniature.replacing import replacing
from dspine_cluster.miniature.settings import KINDS, Kind, Settings
from dspine_cluster.miniature.target_training import new_target, train_target
from dspine_cluster.miniature.tokenizer import (
    save_tokenizer,
    train_tokenizer,
    training_texts,
)
from dspine_cluster.models.drafter_weights import load_drafter, load_feature_projector
from dspine_cluster.models.folder import load_tokenizer
from dspine_cluster.models.target import TargetModel
from dspine_cluster.models.weights import load_target

CPU = torch.device("cpu")


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
        with replacing(self.tokenizer_folder) as beside:
            save_tokenizer(train_tokenizer(texts, self.settings.vocab_size), beside)

    def make_target(self) -> None:
        """Train the target and export it."""
        self.make_tokenizer()
        train_target(self.settings, self.tokenizer_folder, self.folder / "target")
        self.export_target()

    def export_target(self) -> None:
        """Export the target's latest checkpoint, finished or not."""
        model = new_target(self.settings, self.tokenizer_folder)
        load_trained(self.folder / "target", model)
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
        yield _row(f"rate of `{kind}`", f"acceptance length after {chosen.steps} steps")
        yield _row("---", "---")
        for rate in chosen.rates:
            settings = replace(
                self.settings, drafter=replace(self.settings.drafter, steps=chosen.steps, rate=rate)
            )
            folder = self.folder / "sweep" / f"{kind}-{rate:g}"
            pair = train_drafter(kind, settings, target, self.folder / "continuations", folder)
            yield _row(f"{rate:g}", f"{acceptance(target, pair, given).length:.2f}")

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
        pairs = {kind: self.drafter(kind, target) for kind in KINDS if (self.pair_folder / kind).is_dir()}
        yield _row("task", "right", "tokens", *pairs)
        yield _row(*["---"] * (3 + len(pairs)))
        measured: dict[Kind, list[Acceptance]] = {kind: [] for kind in pairs}
        everything: list[Answer] = []
        for task in TASK_NAMES:
            given = answers(target, encoder, task, count, seed, max_new_tokens)
            everything += given
            for kind, pair in pairs.items():
                measured[kind].append(acceptance(target, pair, given))
            checked = [is_right(a) for a in given if a.asked.expected is not None]
            right = f"{sum(checked)}/{len(checked)}" if checked else ""
            lengths = [f"{of_task[-1].length:.2f}" for of_task in measured.values()]
            yield _row(task, right, str(sum(len(a.tokens) for a in given)), *lengths)
        yield _row("pooled", "", "", *(f"{pooled(of_task).length:.2f}" for of_task in measured.values()))
        yield ""
        calls = call_score(everything)
        yield (
            f"Of {calls.expected} expected tool calls {calls.valid_json} are valid JSON and {calls.right_name} name "
            f"the right tool; {calls.right_arguments} of {calls.expected_arguments} arguments are right."
        )

    def install(self, folder: Path) -> None:
        """Copy the finished pair into `folder`.

        Raises:
            CheckpointError: a part is not there yet, and nothing is copied; or it cannot be written.
        """
        parts = ("target", *KINDS)
        if missing := [part for part in parts if not (self.pair_folder / part).is_dir()]:
            raise CheckpointError(f"{self.pair_folder} lacks {', '.join(missing)}; run these stages first")
        for part in parts:
            with replacing(folder / part) as beside:
                shutil.copytree(self.pair_folder / part, beside)


def _row(*cells: str) -> str:
    return f"| {' | '.join(cells)} |"

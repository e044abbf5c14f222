"""Runs the drafter model: features into the context pool, and batches of blocks out of it."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from dspine_cluster.drafter.context_rows import DraftPages
from dspine_cluster.engine.draft_graphs import DraftGraphs, DraftPlace
from dspine_cluster.engine.draft_pool import DraftPool
from dspine_cluster.engine.graphs import can_record
from dspine_cluster.engine.inference import in_inference_mode
from dspine_cluster.engine.pace import Pace
from dspine_cluster.models.draft_sampling import DraftSampling
from dspine_cluster.models.drafter import DraftContext, Drafter
from dspine_cluster.models.packed_drafter import PackedDrafter
from dspine_cluster.transport.columns import are_probabilities
from dspine_cluster.transport.messages import Draft, Float32Array, Int32Array, Int64Array, UInt8Array
from dspine_cluster.types import PAGE_TOKENS

_INGEST_TOKENS = 2048
"""Feature rows projected at once: bounds the memory for their keys and values."""


class Arrival(NamedTuple):
    """Feature rows with a place in the pool."""

    rows: UInt8Array
    """uint8 [count, row_bytes]."""
    dtype: torch.dtype
    """What the bytes are."""
    positions: Int64Array
    """[count]: of each row."""
    slots: Int64Array
    """[count]: where each row belongs."""
    may_repeat: bool = True
    """Whether a slot may come twice."""


class Drafts(NamedTuple):
    """Drafted blocks, one row each, with as many proposals as were asked for at most."""

    tokens: Int32Array  # [num_blocks, num_proposals]
    is_sampled: npt.NDArray[np.bool_]
    """[num_blocks]: whether a block is sampled without a seed, so that its distributions are of use."""
    candidates: Int32Array
    """[num_sampled, num_proposals, K]: of each K the proposal comes first."""
    probs: Float32Array  # [num_sampled, num_proposals, K]
    confidence: Float32Array  # [num_blocks, num_proposals]
    is_finite: npt.NDArray[np.bool_] | None
    """[num_blocks]: False where features were not finite numbers; None where all were."""

    def rows(self, index: slice | npt.NDArray[np.bool_]) -> Drafts:
        """Some of the blocks."""
        is_kept = np.zeros(len(self.tokens), np.bool_)
        is_kept[index] = True
        sampled = is_kept[self.is_sampled]
        return Drafts(
            self.tokens[index],
            self.is_sampled[index],
            self.candidates[sampled],
            self.probs[sampled],
            self.confidence[index],
            None if self.is_finite is None else self.is_finite[index],
        )


class DraftRunner:
    """A drafter and its context pool. For one thread."""

    def __init__(
        self, drafter: Drafter, num_pages: int, *, random_seed: int, pace: Pace | None = None
    ) -> None:
        """`random_seed` starts the noise of requests that have no seed of their own. Drafts take as long as `pace`
        says at least."""
        self._pace = pace
        self.config = drafter.config
        self._drafter = drafter
        self._dtype, self._device = drafter.lm_head.dtype, drafter.lm_head.device
        self._pool = DraftPool.create(drafter.config, num_pages, self._dtype, self._device)
        self._index_of = np.zeros(num_pages * PAGE_TOKENS, np.int32)
        """Of each slot among those that something was stored in last."""
        self._generator = torch.Generator(self._device).manual_seed(random_seed)
        self._model = PackedDrafter(drafter) if PackedDrafter.fits(drafter) else drafter
        self._graphs = DraftGraphs(drafter, self._pool) if can_record(self._device) else None

    @property
    def num_pages(self) -> int:
        return self._pool.num_pages

    def warm_up(self) -> None:
        """Draft once, so that the first request pays for no initialisation, and record graphs on a GPU."""
        rows = np.zeros((PAGE_TOKENS, self.config.hidden_size * self._dtype.itemsize), np.uint8)
        places = np.arange(PAGE_TOKENS)
        self.ingest([Arrival(rows, self._dtype, places, places)])
        ask = Draft.of(
            uids=[0],
            rounds=[0],
            anchors=[0],
            positions=[PAGE_TOKENS],
            num_proposals=[self.config.num_proposals],
            output_indices=[0],
            seeds=[None],
            temperatures=[1.0],
        )
        nought = np.zeros(1, np.int64)
        self.draft(ask, DraftPages(nought, nought, np.zeros((1, 1), np.int64)))
        if self._graphs is not None:
            self._graphs.warm_up()

    @in_inference_mode
    def ingest(self, arrivals: Sequence[Arrival]) -> float:
        """Project features and store them. Of rows that go to the same slot the last is kept. Returns the seconds that
        this took."""
        if not arrivals:
            return 0.0
        started_s = time.monotonic()
        features = [self._features(arrival) for arrival in arrivals]
        all_features = torch.cat(features) if len(features) > 1 else features[0]  # [n, hidden_size]
        each = [np.array((arrival.positions, arrival.slots)) for arrival in arrivals]
        places = np.concatenate(each, 1) if len(each) > 1 else each[0]  # [2, n]
        if len(arrivals) > 1 or arrivals[0].may_repeat:
            kept = self._last_of_each(places[1])
            if len(kept) < len(all_features):
                all_features = all_features[torch.from_numpy(kept).to(self._device)]
                places = places[:, kept]
        on_device = torch.from_numpy(places).to(self._device)
        positions, slots = on_device[0], on_device[1]  # cheaper than `unbind`
        for first in range(0, len(all_features), _INGEST_TOKENS):
            own = slice(first, first + _INGEST_TOKENS)
            keys, values = self._model.project_context(all_features[own], positions[own])
            self._pool.write(slots[own], keys, values)
        return time.monotonic() - started_s

    @in_inference_mode
    def draft(self, asks: Draft, contexts: DraftPages) -> Drafts:
        """Draft all blocks in one batch, each with its context."""
        if self._pace is None:
            return self._draft(asks, contexts)
        with self._pace.drafting(len(asks)):
            return self._draft(asks, contexts)

    def _draft(self, asks: Draft, contexts: DraftPages) -> Drafts:
        wanted = slice(int(asks.num_proposals.max()))
        numbers = torch.from_numpy(asks.numbers).to(self._device)
        temperatures = asks.temperatures.astype(np.float32)
        sampling = DraftSampling(
            temperature=torch.from_numpy(temperatures).to(self._device),
            seeds=numbers[7],
            has_seed=numbers[6],
            output_index=numbers[5],
            generator=self._generator,
            is_greedy=not np.count_nonzero(asks.temperatures),
            is_unseeded=not np.count_nonzero(asks.has_seed),
        )
        output = self._drafter.walk(*self._candidates(asks, numbers[2], numbers[3], contexts), sampling)
        tokens = output.tokens.numpy(force=True)[:, wanted].astype(np.int32)
        confidence = output.confidence.numpy(force=True)[:, wanted]
        is_sampled = (asks.temperatures > 0.0) & (asks.has_seed == 0)
        candidates, probs = self._of_rows((output.candidates, output.probs), is_sampled)
        drafts = Drafts(
            tokens,
            is_sampled,
            *_drawn_first(tokens[is_sampled], candidates[:, wanted], probs[:, wanted]),
            confidence,
            is_finite=None,
        )
        return drafts._replace(is_finite=_finite_blocks(drafts))

    def _of_rows(self, tensors: Sequence[Tensor], is_wanted: npt.NDArray[np.bool_]) -> list[npt.NDArray[Any]]:
        """Some rows of tensors on the device, read."""
        if is_wanted.all():
            return [tensor.numpy(force=True) for tensor in tensors]
        rows = torch.from_numpy(np.flatnonzero(is_wanted)).to(self._device)
        return [tensor.index_select(0, rows).numpy(force=True) for tensor in tensors]

    def _candidates(
        self, asks: Draft, anchors: Tensor, positions: Tensor, contexts: DraftPages
    ) -> tuple[Tensor, Tensor]:
        if self._graphs is not None:
            ends = -(-asks.positions // PAGE_TOKENS) - contexts.first_pages
            places = [
                DraftPlace(anchor, position, pages[:num_pages], first_page, start)
                for anchor, position, pages, num_pages, first_page, start in zip(
                    asks.anchors.tolist(),
                    asks.positions.tolist(),
                    contexts.page_table.tolist(),
                    ends.tolist(),
                    contexts.first_pages.tolist(),
                    contexts.starts.tolist(),
                    strict=True,
                )
            ]
            if (found := self._graphs.candidates(places)) is not None:
                return found
        return self._model.candidates(anchors, positions, self._context(contexts))

    def _features(self, arrival: Arrival) -> Tensor:
        rows = arrival.rows if arrival.rows.flags.writeable else arrival.rows.copy()
        return torch.from_numpy(rows).view(arrival.dtype).to(self._device, self._dtype)

    def _context(self, contexts: DraftPages) -> DraftContext:
        return DraftContext(
            key_pages=self._pool.keys,
            value_pages=self._pool.values,
            page_table=self._longs(contexts.page_table),
            first_pages=self._longs(contexts.first_pages),
            starts=self._longs(contexts.starts),
        )

    def _longs(self, values: Int64Array) -> Tensor:
        return torch.from_numpy(values).to(self._device)

    def _last_of_each(self, slots: Int64Array) -> Int64Array:
        """The index of the last of equal slots, in order; of slots without equal ones every index."""
        indices = np.arange(len(slots))
        self._index_of[slots] = indices  # of what goes to one place the last stays
        return np.flatnonzero(self._index_of[slots] == indices)


def _drawn_first(
    tokens: Int32Array, candidates: Int64Array, probs: Float32Array
) -> tuple[Int32Array, Float32Array]:
    """A copy of candidates and their probabilities in which each token has changed places with its first candidate."""
    own_candidates, own_probs = candidates.astype(np.int32, order="C"), probs.copy()
    places = (own_candidates == tokens[..., None]).argmax(-1).ravel()
    rows = np.arange(len(places))
    for values in (own_candidates, own_probs):
        flat = values.reshape(len(rows), values.shape[2])
        flat[rows, places], flat[:, 0] = flat[:, 0], flat[rows, places]
    return own_candidates, own_probs


def _finite_blocks(drafts: Drafts) -> npt.NDArray[np.bool_] | None:
    """See `Drafts.is_finite`."""
    confidence, probs = drafts.confidence, drafts.probs
    if are_probabilities(confidence) and are_probabilities(probs):
        return None
    # What is not told of other blocks is finite where its largest, the confidence, is.
    sums = confidence.sum(1)
    sums[drafts.is_sampled] += probs.sum((1, 2))
    are_finite: npt.NDArray[np.bool_] = np.isfinite(sums)
    return are_finite

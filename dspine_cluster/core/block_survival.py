"""The blocks of a pass, from the choice of verify lengths to what is learnt of their acceptance."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from dspine_cluster.core.survival import SurvivalModel
from dspine_cluster.core.verify_length import Blocks, Outcomes

Acceptance = tuple[int, Sequence[int], int, float]
"""Of a block that was verified: (uid, cells of its proposals up to the first that was rejected, how many were accepted,
how many of them were predicted to be)"""

_NO_BLOCKS = Blocks((), (), (), ())


class BlockSurvival:
    """Learns greedy and sampled requests apart: whether a proposal equals the greedy choice and whether a sampled one
    is accepted are different questions."""

    def __init__(self, max_proposals: int) -> None:
        self.num_drafted = 0
        """Blocks of the pass that have proposals."""
        self._models = {is_greedy: SurvivalModel(max_proposals) for is_greedy in (True, False)}
        self._blocks = _NO_BLOCKS

    def begin(self, blocks: Blocks) -> None:
        """A pass of these is about to run."""
        self._blocks = blocks
        self.num_drafted = len(blocks) - list(blocks.num_proposals).count(0)

    @property
    def rates(self) -> list[Sequence[float]]:
        """Of each block, P(accept | all before accepted) by cell."""
        greedy, sampled = self._models[True].rates, self._models[False].rates
        return [greedy if is_greedy else sampled for is_greedy in self._blocks.is_greedy]

    @property
    def expected(self) -> Sequence[float]:
        """What to expect of rows that must not be looked at, by position; as for the first block."""
        return self._models[self._blocks.is_greedy[0]].expected

    def acceptances(self, outcomes: Outcomes) -> list[Acceptance]:
        """What the target made of the blocks that were verified."""
        blocks = self._blocks
        cells, is_greedy = blocks.cells, blocks.is_greedy
        rate_of = {key: model.rates.__getitem__ for key, model in self._models.items()}
        row_of = {uid: row for row, uid in enumerate(blocks.uids)}
        found = []
        for uid, num_verified, num_accepted in zip(
            outcomes.uids, outcomes.num_verified, outcomes.num_accepted, strict=True
        ):
            if num_verified:
                row = row_of[uid]
                tried = cells[row][: num_accepted + 1 if num_accepted < num_verified else num_verified]
                predicted = sum(map(rate_of[is_greedy[row]], tried))
                found.append((uid, tried, num_accepted, predicted))
        return found

    def learn(self, acceptances: Sequence[Acceptance]) -> None:
        """The pass has ended, and all is decided that goes by what was known before."""
        is_greedy = dict(zip(self._blocks.uids, self._blocks.is_greedy, strict=True))
        for key, model in self._models.items():
            model.note(
                [(tried, accepted) for uid, tried, accepted, _ in acceptances if is_greedy[uid] == key]
            )
        self._blocks, self.num_drafted = _NO_BLOCKS, 0

    def curves(self, first: int, most: int) -> Iterator[tuple[int, list[float]]]:
        """Uid and survivals of up to `most` of the blocks that have proposals, from the one with the number `first` on,
        round and round."""
        blocks = self._blocks
        drafted = [row for row, num_proposals in enumerate(blocks.num_proposals) if num_proposals]
        for i in range(min(most, len(drafted))):
            row = drafted[(first + i) % len(drafted)]
            cells = blocks.cells[row][: blocks.num_proposals[row]]
            yield blocks.uids[row], self._models[blocks.is_greedy[row]].curve(cells)

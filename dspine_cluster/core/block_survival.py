"""The blocks of a pass, from the choice of verify lengths to what is learnt of their acceptance."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import chain, islice

from dspine_cluster.core.survival import SurvivalModel
from dspine_cluster.core.verify_length import Blocks, Outcomes

Acceptance = tuple[int, int, int, float]
"""Of a block that was verified: (uid, its proposals up to the first that was rejected, how many were accepted, how many
of them were predicted to be)"""

_NO_BLOCKS = Blocks((), (), (), ())
_BLOCKS_PER_PASS = 16
"""More would tell little that the next passes do not, and take time in each."""


class BlockSurvival:
    """Learns greedy and sampled requests apart: whether a proposal equals the greedy choice and whether a sampled one
    is accepted are different questions."""

    def __init__(self, max_proposals: int) -> None:
        self.num_drafted = 0
        """Blocks of the pass that have proposals."""
        self._models = {is_greedy: SurvivalModel(max_proposals) for is_greedy in (True, False)}
        self._blocks = _NO_BLOCKS
        self._turn = 0  # the row that is next to be learnt from if its block was verified
        self._tried: dict[bool, list[tuple[Sequence[int], int]]] = {True: [], False: []}

    def begin(self, blocks: Blocks) -> None:
        """A pass of these is about to run."""
        self._blocks = blocks
        self.num_drafted = len(blocks) - blocks.num_proposals.count(0)

    @property
    def rates(self) -> list[Sequence[float]]:
        """Of each block, P(accept | all before accepted) by cell."""
        greedy, sampled = self._models[True].rates, self._models[False].rates
        return [greedy if is_greedy else sampled for is_greedy in self._blocks.is_greedy]

    @property
    def expected(self) -> Sequence[float]:
        """What to expect of rows that must not be looked at, by position; as for the first block."""
        return self._models[self._blocks.is_greedy[0]].expected

    def acceptances(self, outcomes: Outcomes, first_uid: int | None = None) -> list[Acceptance]:
        """What the target made of the blocks that were verified; of many, of some that take turns, which is independent
        of what became of them. The request `first_uid`, if it is among them, is one of these. To be learnt from when
        all is decided that goes by what was known before."""
        num_verified, num_accepted = outcomes.num_verified, outcomes.num_accepted
        turn = self._turn
        if first_uid is not None and first_uid in outcomes.uids:
            row = outcomes.uids.index(first_uid)
            turn = row if num_verified[row] else turn
        in_turn = chain(range(turn, len(outcomes)), range(min(turn, len(outcomes))))
        verified = list(islice(filter(num_verified.__getitem__, in_turn), _BLOCKS_PER_PASS))
        if len(verified) == _BLOCKS_PER_PASS:
            self._turn = verified[-1] + 1
        blocks = self._blocks
        row_of = None
        if outcomes.uids != blocks.uids:
            row_of = {uid: row for row, uid in enumerate(blocks.uids)}
        rate_of = {key: model.rates.__getitem__ for key, model in self._models.items()}
        found = []
        for row in verified:
            uid, count = outcomes.uids[row], num_accepted[row]
            own = row if row_of is None else row_of[uid]
            key = blocks.is_greedy[own]
            num_tried = count + 1 if count < num_verified[row] else num_verified[row]
            tried = blocks.cells[own][:num_tried]
            found.append((uid, num_tried, count, sum(map(rate_of[key], tried))))
            self._tried[key].append((tried, count))
        return found

    def learn(self) -> None:
        """The pass has ended."""
        for key, model in self._models.items():
            model.note(self._tried[key])
            self._tried[key].clear()
        self._blocks, self.num_drafted = _NO_BLOCKS, 0

    def curves(self, first: int, most: int) -> Iterator[tuple[int, list[float]]]:
        """Uid and survivals of up to `most` of the blocks that have proposals, from the one with the number `first` on,
        round and round."""
        blocks = self._blocks
        drafted: Sequence[int] = range(len(blocks))
        if self.num_drafted < len(blocks):
            drafted = [row for row, num_proposals in enumerate(blocks.num_proposals) if num_proposals]
        for i in range(min(most, len(drafted))):
            row = drafted[(first + i) % len(drafted)]
            cells = blocks.cells[row][: blocks.num_proposals[row]]
            yield blocks.uids[row], self._models[blocks.is_greedy[row]].curve(cells)

"""How far each block is verified, and what comes next: the walk over verify lengths looks at no row behind it."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from heapq import heappop, heappush, heapreplace


class Frontier:
    """Of every block the first row that is not verified yet. Survivals are kept negated, and blocks of the same one
    together."""

    def __init__(
        self,
        num_proposals: Sequence[int],
        cells: Sequence[Sequence[int]],
        rates: Sequence[Sequence[float]],
    ) -> None:
        """For the arguments see `verify_walk.choose_lengths`. Nothing is taken yet."""
        self.lengths = [0] * len(num_proposals)
        """Of each block, the proposals taken so far."""
        self.heap: list[float] = []
        """The survivals that there are, negated: the likeliest is the first."""
        self._num_proposals = num_proposals
        self._cells = cells
        self._rates = rates
        self._blocks: dict[float, list[int]] = {}  # by negated survival

    def begin(self, apart: Collection[int] = ()) -> None:
        """Look at the first rows of all blocks but those `apart`."""
        blocks_of, cells, rates = self._blocks, self._cells, self._rates
        for block, count in enumerate(self._num_proposals):
            if count and block not in apart:
                head = -rates[block][cells[block][0]]
                if (equals := blocks_of.get(head)) is None:
                    blocks_of[head] = [block]
                else:
                    equals.append(block)
        self.heap = sorted(blocks_of)

    def take_in_full(self, block: int, most: int, gain: float) -> float:
        """Take the proposals of a block, up to `most`, whatever they are; `gain` and what they are expected to give."""
        count = self.lengths[block] = min(self._num_proposals[block], most)
        survival = 1.0
        for position in range(count):
            survival *= self._rates[block][self._cells[block][position]]
            gain += survival
        return gain

    def take(self, most: int, gain: float) -> tuple[int, float]:
        """Take the likeliest, one after the other, up to `most`: how many there were; `gain` and what they are expected
        to give."""
        heap, blocks_of, lengths = self.heap, self._blocks, self.lengths
        num_proposals, cells, rates = self._num_proposals, self._cells, self._rates
        left = most
        while heap and left:
            negated = heap[0]
            blocks = blocks_of[negated]
            if len(blocks) > 1:
                blocks.sort(reverse=True)  # of equals, the first block comes first
            while left:
                block = blocks.pop()
                left -= 1
                gain -= negated
                length = lengths[block] = lengths[block] + 1
                if length < num_proposals[block]:
                    head = negated * rates[block][cells[block][length]]
                    if (equals := blocks_of.get(head)) is not None:
                        equals.append(block)
                    elif blocks:
                        blocks_of[head] = [block]
                        heappush(heap, head)
                    else:
                        blocks.append(block)
                        blocks_of[head] = blocks_of.pop(negated)
                        heapreplace(heap, head)
                        break
                if not blocks:
                    del blocks_of[negated]
                    heappop(heap)
                    break
        return most - left, gain

    def gain_of(self, count: int) -> float:
        """What the likeliest `count` are expected to give, of the rows that have been looked at."""
        gain = 0.0
        for negated in sorted(self.heap):
            num_equal = len(self._blocks[negated])
            if num_equal >= count:
                return gain - negated * count
            gain -= negated * num_equal
            count -= num_equal
        return gain

    def ahead(self, expected: Sequence[float], floor: float) -> list[float]:
        """What has at least `floor` to expect, of rows that have been looked at and, by what is `expected` at their
        positions, of those behind them: negated survivals, the likeliest first."""
        lengths, num_proposals = self.lengths, self._num_proposals
        ahead: list[float] = []
        for first, blocks in self._blocks.items():
            if -first < floor:
                continue
            position = count = -1
            own: list[float] = []
            for block in blocks:
                if lengths[block] != position or num_proposals[block] != count:
                    position, count = lengths[block], num_proposals[block]
                    negated, own = first, [first]
                    for rate in expected[position + 1 : count]:
                        negated *= rate
                        if -negated < floor:
                            break
                        own.append(negated)
                ahead += own
        ahead.sort()
        return ahead

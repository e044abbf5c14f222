"""How far each block is verified, and what comes next: the walk over verify lengths looks at no row behind it."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from heapq import heapify, heappop, heapreplace


class Frontier:
    """Of every block the first row that is not verified yet."""

    def __init__(
        self,
        num_proposals: Sequence[int],
        cells: Sequence[Sequence[int]],
        rates: Sequence[Sequence[float]],
    ) -> None:
        """For the arguments see `verify_walk.choose_lengths`. Nothing is taken yet."""
        self.lengths = [0] * len(num_proposals)
        """Of each block, the proposals taken so far."""
        self.heap: list[tuple[float, int]] = []
        """Negated survivals and their blocks: the likeliest is the first, of equals that of the first block."""
        self._num_proposals = num_proposals
        self._cells = cells
        self._rates = rates

    def begin(self, apart: Collection[int] = ()) -> None:
        """Look at the first rows of all blocks but those `apart`."""
        cells, rates = self._cells, self._rates
        self.heap = [
            (-rates[block][cells[block][0]], block)
            for block, count in enumerate(self._num_proposals)
            if count and block not in apart
        ]
        heapify(self.heap)

    def take_in_full(self, block: int, most: int, gain: float) -> float:
        """Take the proposals of a block, up to `most`, whatever they are; `gain` and what they are expected to give."""
        count = self.lengths[block] = min(self._num_proposals[block], most)
        survival = 1.0
        for position in range(count):
            survival *= self._rates[block][self._cells[block][position]]
            gain += survival
        return gain

    def take(
        self, most: int, gain: float, time: float, token_s: float, *, is_certain: bool = False
    ) -> tuple[int, float, float]:
        """Take the likeliest one after the other, each for `token_s`, up to `most`. Unless `is_certain` this ends with
        one that lowers the rate gain / time. Returns how many there were, and with them `gain` in tokens and `time`
        in seconds."""
        heap, lengths = self.heap, self.lengths
        num_proposals, cells, rates = self._num_proposals, self._cells, self._rates
        left = most
        while heap and left:
            negated, block = heap[0]
            longer = time + token_s
            if not is_certain and -negated * time < gain * (longer - time):
                break
            left -= 1
            gain, time = gain - negated, longer
            length = lengths[block] = lengths[block] + 1
            if length < num_proposals[block]:
                heapreplace(heap, (negated * rates[block][cells[block][length]], block))
            else:
                heappop(heap)
        return most - left, gain, time

    def gain_of(self, count: int) -> float:
        """What the likeliest `count` are expected to give, of the rows that have been looked at."""
        heads = [negated for negated, _ in self.heap]
        if count < len(heads):
            heads.sort()
            del heads[count:]
        return -sum(heads)

    def ahead(self, expected: Sequence[float], floor: float) -> list[float]:
        """What has at least `floor` to expect, of rows that have been looked at and, by what is `expected` at their
        positions, of those behind them: negated survivals, the likeliest first."""
        lengths, num_proposals = self.lengths, self._num_proposals
        ahead: list[float] = []
        for head, block in self.heap:
            if -head < floor:
                continue
            ahead.append(head)
            negated = head
            for rate in expected[lengths[block] + 1 : num_proposals[block]]:
                negated *= rate
                if -negated < floor:
                    break
                ahead.append(negated)
        ahead.sort()
        return ahead

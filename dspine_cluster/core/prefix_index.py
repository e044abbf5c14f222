"""Which cached prefixes a replica holds, by page key, and what it gives up first when memory runs out."""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Iterator, MutableSequence, Sequence
from dataclasses import dataclass, field

from dspine_cluster.core.page_hash import PageKey
from dspine_cluster.core.page_pool import PagePool
from dspine_cluster.core.prefix_events import PrefixEvents
from dspine_cluster.types import PAGE_TOKENS


@dataclass(frozen=True, slots=True)
class Match:
    """Where a request can resume."""

    num_tokens: int = 0
    """Committed tokens that need not pass through the target again."""
    pages: tuple[int, ...] = ()
    """They hold the first 16 * len(pages) of these tokens, and are read only."""
    tail_page: int | None = None
    """Holds the rest in its first slots; to be copied, because the request writes behind them."""
    checkpoint: int | None = None
    """The recurrent state after these tokens; None if the target has none."""
    num_idle_pages: int = 0
    """Pages among these that no request holds yet: holding them takes them from what can be allocated."""
    num_known_tokens: int = 0
    """How far pages of the same tokens are cached, restorable or not."""


NO_MATCH = Match()


@dataclass(slots=True, eq=False)
class _Node:
    """A cached page, child of the page before it. A tail is a leaf that ends with fewer than 16 tokens."""

    key: PageKey
    page: int
    parent: _Node | None
    end: int
    """Position behind its last token."""
    tail: tuple[int, ...] = ()
    tails: list[_Node] = field(default_factory=list)
    num_children: int = 0
    checkpoint: int | None = None


class PrefixIndex:
    """A tree of cached pages over a page pool, and the only way to pages of that pool.

    An indexed page carries one reference of the index beside those of the requests that read it. Requests hold whole
    prefixes, so a page that none of them holds has no descendant that one holds. Such idle pages are given up when
    memory is needed, least recently used first and descendants before their ancestors.

    Without states (a dense target) every indexed page ends a restorable prefix. With states (a hybrid target) only
    checkpoints and page tails with checkpoints do, and a page that leads to none of them is not kept.
    """

    def __init__(self, pool: PagePool, *, has_states: bool, max_checkpoints: int = 0) -> None:
        self.pool = pool
        self.events = PrefixEvents()
        self.num_evicted_pages = 0
        self.num_evicted_checkpoints = 0
        self._has_states = has_states
        self._max_checkpoints = max_checkpoints
        self._by_key: dict[PageKey, _Node] = {}
        self._by_page: dict[int, _Node] = {}
        self._idle: OrderedDict[int, _Node] = OrderedDict()  # by page, the next to be evicted first
        self._checkpoints: OrderedDict[int, _Node] = OrderedDict()  # by number, least recently used first
        self._free_checkpoints = list(reversed(range(max_checkpoints)))

    @property
    def num_available(self) -> int:
        """Pages that can be allocated: free ones, and idle ones that would be evicted for it."""
        return self.pool.num_free + len(self._idle)

    @property
    def num_cached_pages(self) -> int:
        return len(self._by_page)

    @property
    def num_checkpoints(self) -> int:
        return len(self._checkpoints)

    def is_indexed(self, page: int) -> bool:
        return page in self._by_page

    def num_holders(self, page: int) -> int:
        """Requests that hold a page."""
        return self.pool.num_references(page) - self.is_indexed(page)

    def match(self, keys: Sequence[PageKey], tokens: Sequence[int]) -> Match:
        """The longest restorable prefix of `tokens` that leaves at least one of them to compute; `keys` are theirs."""
        limit = len(tokens) - 1
        path = list(self._walk(keys[: limit // PAGE_TOKENS]))
        num_known = len(path) * PAGE_TOKENS
        for depth in range(len(path), 0, -1):
            node = path[depth - 1]
            end = self._longest_tail(node, tokens, limit) or node
            if end.checkpoint is None and self._has_states:
                continue
            is_tail = end is not node
            return Match(
                num_tokens=end.end,
                pages=tuple(held.page for held in path[:depth]),
                tail_page=end.page if is_tail else None,
                checkpoint=end.checkpoint,
                num_idle_pages=sum(held.page in self._idle for held in [*path[:depth], *([end] * is_tail)]),
                num_known_tokens=num_known,
            )
        return Match(num_known_tokens=num_known)

    def hold(self, match: Match) -> None:
        """Take a reference to the pages of a match, its tail included, before anything is allocated."""
        for page in _pages_of(match):
            self.pool.share([page])
            self._idle.pop(page, None)
        if match.checkpoint is not None:
            self._checkpoints.move_to_end(match.checkpoint)

    def allocate(self, count: int) -> list[int]:
        """`count` <= `num_available` new pages; idle ones are evicted as far as free ones do not suffice."""
        while self.pool.num_free < count:
            assert self._idle, "more pages are taken than can be evicted"
            node = next(iter(self._idle.values()))
            self.num_evicted_pages += 1
            self.num_evicted_checkpoints += node.checkpoint is not None
            self._remove(node)
            self._prune(node.parent)
        pages = self.pool.allocate(count)
        assert pages is not None
        return pages

    def release(self, pages: Sequence[int]) -> None:
        """Drop a request's references to `pages`, which are in the order of its tokens."""
        for page in reversed(pages):
            self.pool.release([page])
            node = self._by_page.get(page)
            if node is not None and self.num_holders(page) == 0:
                self._idle[page] = node
                self._prune(node)

    def insert(self, keys: Sequence[PageKey], pages: MutableSequence[int], start: int, end: int) -> None:
        """Index pages `start` .. end - 1 of a request whose `pages` have these keys; those before are indexed already.

        Where a page of the same tokens is indexed already, the request's own copy in `pages` is replaced by it.
        """
        parent = self._by_key[keys[start - 1]] if start else None
        assert parent is None or parent.page == pages[start - 1]
        for number in range(start, end):
            key = keys[number]
            node = self._by_key.get(key)
            if node is None:
                node = self._add(
                    _Node(key=key, page=pages[number], parent=parent, end=(number + 1) * PAGE_TOKENS)
                )
                self._by_key[key] = node
                if not self._has_states:
                    self.events.add(key)
            elif node.page != pages[number]:
                self.pool.share([node.page])
                self._idle.pop(node.page, None)
                self.pool.release([pages[number]])
                pages[number] = node.page
            parent = node

    def add_checkpoint(
        self, key: PageKey, tail: tuple[int, ...] = (), tail_page: int | None = None
    ) -> int | None:
        """Make a prefix restorable: the one that ends with page `key` and then the `tail`, the first tokens of
        `tail_page`. A request holds all its pages.

        Returns the number under which to save the state; None if there is one already, or no room for any.
        """
        parent = self._by_key[key]
        known = next((node for node in parent.tails if node.tail == tail), None) if tail else parent
        if known is not None and known.checkpoint is not None:
            self._checkpoints.move_to_end(known.checkpoint)
            return None
        if not self._max_checkpoints:
            return None
        if not self._free_checkpoints:
            self._drop_checkpoint(next(iter(self._checkpoints.values())))
            self.num_evicted_checkpoints += 1
        if known is None:
            assert tail_page is not None
            assert 0 < len(tail) < PAGE_TOKENS
            known = self._add(
                _Node(key=key, page=tail_page, parent=parent, end=parent.end + len(tail), tail=tail)
            )
            parent.tails.append(known)
        known.checkpoint = self._free_checkpoints.pop()
        self._checkpoints[known.checkpoint] = known
        if not tail:
            self.events.add(key)
        return known.checkpoint

    def check_integrity(self) -> None:
        """Assert that the tree, the pool, the idle pages and the checkpoints agree."""
        self.pool.check_integrity()
        nodes = list(self._by_page.values())
        full = [node for node in nodes if not node.tail]
        assert {node.key: node for node in full} == self._by_key
        assert sorted([*self._checkpoints, *self._free_checkpoints]) == list(range(self._max_checkpoints))
        assert all(node.checkpoint == number for number, node in self._checkpoints.items())
        assert sum(node.checkpoint is not None for node in nodes) == len(self._checkpoints)
        num_children = Counter(node.parent.page for node in nodes if node.parent is not None)
        age = {page: position for position, page in enumerate(self._idle)}
        for page, node in self._by_page.items():
            parent = node.parent
            assert node.page == page
            assert (self.num_holders(page) == 0) == (page in self._idle), (
                f"page {page} is not as idle as said"
            )
            assert node.num_children == num_children[page]
            assert node.end == (parent.end if parent else 0) + (len(node.tail) or PAGE_TOKENS)
            assert not node.tail or (parent is not None and node in parent.tails and node.num_children == 0)
            assert parent is None or self._by_page[parent.page] is parent, "a page outlives the one before it"
            if parent is not None and parent.page in age:
                assert age[page] < age[parent.page], "a page would be evicted before one that follows it"
            assert page not in age or not self._is_useless(node), (
                "a page is kept that nothing can resume from"
            )
        restorable = {node.key for node in full if not self._has_states or node.checkpoint is not None}
        assert self.events.present == restorable

    def _walk(self, keys: Sequence[PageKey]) -> Iterator[_Node]:
        for key in keys:
            node = self._by_key.get(key)
            if node is None:
                return
            yield node

    @staticmethod
    def _longest_tail(node: _Node, tokens: Sequence[int], limit: int) -> _Node | None:
        fitting = [
            tail
            for tail in node.tails
            if tail.end <= limit and tuple(tokens[node.end : tail.end]) == tail.tail
        ]
        return max(fitting, key=lambda tail: tail.end, default=None)

    def _add(self, node: _Node) -> _Node:
        """Index a page that a request holds."""
        assert node.page not in self._by_page
        self.pool.share([node.page])
        self._by_page[node.page] = node
        if node.parent is not None:
            node.parent.num_children += 1
        return node

    def _is_useless(self, node: _Node) -> bool:
        return self._has_states and node.checkpoint is None and node.num_children == 0

    def _prune(self, node: _Node | None) -> None:
        """Let go of an idle page that leads to no checkpoint, then of those before it for which that holds too."""
        while node is not None and node.page in self._idle and self._is_useless(node):
            self._remove(node)
            node = node.parent

    def _drop_checkpoint(self, node: _Node) -> None:
        self._forget_checkpoint(node)
        self._prune(node)

    def _forget_checkpoint(self, node: _Node) -> None:
        if node.checkpoint is None:
            return
        del self._checkpoints[node.checkpoint]
        self._free_checkpoints.append(node.checkpoint)
        node.checkpoint = None
        if not node.tail:
            self.events.discard(node.key)

    def _remove(self, node: _Node) -> None:
        """Take an idle page without children out of the index; it is free then."""
        assert node.num_children == 0
        del self._idle[node.page]
        del self._by_page[node.page]
        self._forget_checkpoint(node)
        if node.tail:
            assert node.parent is not None
            node.parent.tails.remove(node)
        else:
            del self._by_key[node.key]
            if not self._has_states:
                self.events.discard(node.key)
        self.pool.release([node.page])
        if node.parent is not None:
            node.parent.num_children -= 1


def _pages_of(match: Match) -> list[int]:
    return [*match.pages, *([] if match.tail_page is None else [match.tail_page])]

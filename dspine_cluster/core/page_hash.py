"""The keys under which pages of cached tokens are shared: each names its page's tokens and all tokens before them."""

from __future__ import annotations

import sys
from array import array
from collections.abc import Sequence
from hashlib import blake2b

from dspine_cluster.types import CHUNK_GRID_TOKENS, PAGE_TOKENS

PageKey = bytes
"""16 bytes: equal keys mean equal tokens up to the page's end, computed in the same way for the same owner."""

_KEY_BYTES = 16
_BYTES_PER_TOKEN = 4


def root_key(*parts: str) -> PageKey:
    """The key before the first page: pages under different roots are never shared. Each part goes in with its length,
    so that no two lists of parts read the same."""
    hasher = blake2b(digest_size=_KEY_BYTES)
    for part in parts:
        encoded = part.encode("utf-8", "surrogatepass")
        hasher.update(len(encoded).to_bytes(8, "little"))
        hasher.update(encoded)
    return hasher.digest()


def verifier_root(target_fingerprint: str, dtype: str, cache_salt: str) -> PageKey:
    """The root of a verifier's pages and checkpoints, for requests of one salt."""
    return root_key("verifier", target_fingerprint, dtype, str(CHUNK_GRID_TOKENS), cache_salt)


def draft_root(target_fingerprint: str, drafter_fingerprint: str, dtype: str, cache_salt: str) -> PageKey:
    """The root of the draft pages that come from a verifier's features, for requests of one salt."""
    verifier = verifier_root(target_fingerprint, dtype, cache_salt)
    return root_key("drafter", verifier.hex(), drafter_fingerprint)


def page_keys(tokens: Sequence[int], root: PageKey, start: Sequence[PageKey] = ()) -> list[PageKey]:
    """The keys of all full pages of `tokens`, in order; a page that is not full has none.

    The key of page i is blake2b(key of page i - 1, or `root`, + the page's tokens as little-endian int32).

    Args:
        tokens: token ids from position 0 on, each in [0, 2^31).
        root: see `root_key`.
        start: the keys of the first pages, where they are known already.
    """
    num_pages = len(tokens) // PAGE_TOKENS
    keys = list(start[:num_pages])
    encoded = array("i", tokens[len(keys) * PAGE_TOKENS : num_pages * PAGE_TOKENS])
    assert encoded.itemsize == _BYTES_PER_TOKEN
    if sys.byteorder == "big":
        encoded.byteswap()
    raw = encoded.tobytes()
    key = keys[-1] if keys else root
    page_bytes = PAGE_TOKENS * _BYTES_PER_TOKEN
    for offset in range(0, len(raw), page_bytes):
        key = blake2b(key + raw[offset : offset + page_bytes], digest_size=_KEY_BYTES).digest()
        keys.append(key)
    return keys

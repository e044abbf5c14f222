"""What one pass through the target holds."""

from __future__ import annotations

from dataclasses import dataclass, field

from dspine_cluster.core.resume import Resume
from dspine_cluster.core.session import Session
from dspine_cluster.core.verify_length import PassLoad


@dataclass(slots=True)
class BlockPlans:
    """The requests that a pass decodes, in columns: of each its anchor and its first proposals."""

    sessions: list[Session] = field(default_factory=list)
    verify_lengths: list[int] = field(default_factory=list)
    """Proposals of each that the target checks; chosen by what the other columns hold."""
    lacking: list[Session] = field(default_factory=list)
    """Those that get a page more. None needs two: proposals are fewer than a page holds."""
    uids: list[int] = field(init=False)
    starts: list[int] = field(init=False)
    """Where their anchors are, and how many cached tokens they attend to."""
    num_useful: list[int] = field(init=False)
    """Proposals of each that could become output beside a bonus token; a block may have fewer."""

    def __post_init__(self) -> None:
        self.uids = [session.uid for session in self.sessions]
        self.starts = [session.num_computed for session in self.sessions]
        self.num_useful = [
            session.max_length - start - 2 for session, start in zip(self.sessions, self.starts, strict=True)
        ]

    def __len__(self) -> int:
        return len(self.sessions)


@dataclass(frozen=True, slots=True)
class ChunkPlan:
    """Prefill one request's next `num_tokens` committed tokens."""

    session: Session
    num_tokens: int
    num_new_pages: int
    """Pages for all its uncomputed tokens, given when it is admitted, so that prefill never stalls on memory."""
    resume: Resume | None = None
    """How to admit the session, if it waits until now."""

    @property
    def tokens(self) -> list[int]:
        """The chunk's tokens. Asked before it is run."""
        start = self.session.num_computed
        return self.session.tokens[start : start + self.num_tokens]

    @property
    def completes_prefill(self) -> bool:
        """Whether the chunk passes the session's last committed token through the target. Asked before it is run."""
        return self.session.num_computed + self.num_tokens == len(self.session.tokens)


@dataclass(slots=True)
class BatchPlan:
    """One pass. Preempted sessions release their pages before new ones are taken."""

    blocks: BlockPlans = field(default_factory=BlockPlans)
    chunks: list[ChunkPlan] = field(default_factory=list)
    preempted: list[Session] = field(default_factory=list)

    @property
    def sessions(self) -> list[Session]:
        """All that run in this pass, in the order of its rows."""
        return [*self.blocks.sessions, *[chunk.session for chunk in self.chunks]]

    @property
    def completing(self) -> list[Session]:
        """Those whose prefill it completes. Asked before it is run."""
        return [chunk.session for chunk in self.chunks if chunk.completes_prefill]

    @property
    def is_empty(self) -> bool:
        return not self.blocks and not self.chunks

    @property
    def load(self) -> PassLoad:
        """What it holds beside proposals."""
        return PassLoad(
            num_prefill_tokens=sum(chunk.num_tokens for chunk in self.chunks),
            num_kv_tokens=sum(self.blocks.starts),
        )

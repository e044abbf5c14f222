"""The values that travel between layers: sampling parameters, requests and what a round yields."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum

PAGE_TOKENS = 16
"""Consecutive cached tokens in one page."""

MAX_PROPOSALS = 15
"""The most proposals of one block."""

CHUNK_GRID_TOKENS = 64
"""Prefill chunks end at multiples of this or at the end of the prompt, whatever the load and wherever a request
resumes, so that the same prompt is always computed in the same pieces."""


class FinishReason(StrEnum):
    """Why a request ended."""

    STOP = "stop"
    """An end-of-sequence token, a stop token or a stop string."""
    LENGTH = "length"
    """`max_tokens` or the context limit was reached."""
    ABORT = "abort"
    """The caller went away."""


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """How tokens are chosen. The distribution is defined in the order bias and penalties, temperature, top-k,
    top-p, min-p, renormalise."""

    temperature: float = 1.0
    top_k: int = 0
    """Keep the k most likely tokens; 0 keeps all."""
    top_p: float = 1.0
    min_p: float = 0.0
    seed: int | None = None
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    logit_bias: tuple[tuple[int, float], ...] = ()
    allowed_token_ids: tuple[int, ...] | None = None
    """No others become output; without an end token among them only `max_tokens` or a stop string ends it."""
    bad_words: tuple[tuple[int, ...], ...] = ()
    """Tokens that do not follow each other in the output, unless nothing else can come."""

    @property
    def is_greedy(self) -> bool:
        return self.temperature == 0.0

    @property
    def has_penalties(self) -> bool:
        return self.presence_penalty != 0.0 or self.frequency_penalty != 0.0 or self.repetition_penalty != 1.0


@dataclass(frozen=True, slots=True)
class StopConditions:
    """When a request ends."""

    max_tokens: int
    """Output tokens at most, forced ones included."""
    min_tokens: int = 0
    stop_strings: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    ignore_eos: bool = False
    shows_stop: bool = False
    """The text has what ended it, too: the stop string, or the end token's text."""


@dataclass(frozen=True, slots=True)
class OutputGrammar:
    """What the whole output has to look like."""

    structural_tag: str
    """In xgrammar's format, as JSON."""
    param: str
    """The field of the client's request that asks for it; errors name it."""


@dataclass(frozen=True, slots=True)
class GenerateRequest:
    """One generation as a verifier replica receives it."""

    request_id: str
    prompt_ids: tuple[int, ...]
    sampling: SamplingParams
    stop: StopConditions
    forced_output_ids: tuple[int, ...] = ()
    """Output tokens already given to the caller by another replica; they count as output everywhere."""
    priority: int = 0
    """Of one client's requests smaller is served first, equal ones in order of arrival."""
    message_boundaries: tuple[int, ...] = ()
    """Lengths, ascending, at which messages of the prompt end: where later prompts are likely to part from it."""
    cache_salt: str = ""
    """Only requests of the same salt share cached prefixes."""
    client: str = ""
    """Who asks. What waits is served fairly between clients, and `priority` is among requests of one client."""
    client_share: float = 1.0
    """What the client is entitled to beside others."""
    preferred_drafter: tuple[str, ...] = ()
    """Endpoints of the drafter that placement has picked, because it may have the context already. Another one is used
    where the verifier is not connected to it."""
    num_top_logprobs: int | None = None
    """Not None: give the log-probabilities of output tokens, and those of so many most likely tokens beside each."""
    skip_special_tokens: bool = True
    """Leave special tokens out of the text."""
    prompt_logprobs: bool = False
    """Give those of the prompt's tokens, too. It is then computed whole, whatever of it is cached."""
    traceparent: str = ""
    """The span that the request belongs to, as W3C's header names it; empty where the request is not traced."""
    grammar: OutputGrammar | None = None
    """The request ends where its grammar does, whatever `ignore_eos` and `min_tokens` say."""


@dataclass(slots=True)
class Usage:
    """Token counts of one request. Like all values that are made for every request of every round not frozen, which
    would take several times as long; nobody changes it."""

    prompt_tokens: int = 0
    output_tokens: int = 0
    cached_prompt_tokens: int = 0
    """Prompt tokens whose K/V and state were found in the prefix cache when the request was first admitted."""
    num_rounds: int = 0
    """Decoding rounds, drafted or plain; the token that prefill yields belongs to none."""
    proposed_tokens: int = 0
    verified_tokens: int = 0
    accepted_tokens: int = 0


@dataclass(slots=True)
class Logprobs:
    """Log-probabilities of consecutive tokens: log-softmax of the target's raw logits, before masks, bias, penalties
    and temperature, given the tokens before."""

    chosen: tuple[float, ...] = ()
    """Those of the tokens themselves."""
    top_ids: tuple[tuple[int, ...], ...] = ()
    """The most likely tokens at each position, likeliest first."""
    top: tuple[tuple[float, ...], ...] = ()
    """Theirs."""

    def __len__(self) -> int:
        return len(self.chosen)

    def __getitem__(self, part: slice) -> Logprobs:
        return Logprobs(self.chosen[part], self.top_ids[part], self.top[part])

    def __add__(self, later: Logprobs) -> Logprobs:
        return Logprobs(self.chosen + later.chosen, self.top_ids + later.top_ids, self.top + later.top)


@dataclass(slots=True)
class RoundOutput:
    """What one round gave a request. The last item of a stream carries `finish_reason` and the final usage."""

    token_ids: tuple[int, ...]
    """Committed output tokens of this round, in order; may be empty in the last item."""
    text: str
    """Text that became certain; partial stop strings and partial UTF-8 are held back."""
    accepted_tokens: int = 0
    """How many of `token_ids`, from the start, were accepted proposals."""
    finish_reason: FinishReason | None = None
    usage: Usage = field(default_factory=Usage)
    logprobs: Logprobs | None = None
    """Of `token_ids`, for requests that ask for them."""
    prompt_logprobs: Logprobs | None = None
    """Of all prompt tokens but the first, in the first item, for requests that ask for them."""

"""How far one generation has come, on whichever replicas."""

from __future__ import annotations

from dataclasses import replace

from dspine_cluster.core.cluster_records import Fingerprints
from dspine_cluster.types import GenerateRequest, RoundOutput, Usage


class Progress:
    """What the caller has got of a generation, so that another replica can go on from there."""

    def __init__(self, request: GenerateRequest) -> None:
        self._request = request
        self._token_ids = list(request.forced_output_ids)
        self._num_attempts = 0
        self._earlier = Usage()
        """Rounds of the attempts before the present one."""
        self._present = Usage()
        self._cached_prompt_tokens: int | None = None
        self.models: Fingerprints | None = None
        """What began the generation, and alone can go on with it."""
        self.has_ended = False
        """The caller has the last item."""

    def begin(self) -> GenerateRequest:
        """The request for the next attempt: what the caller has counts as output, and is not sent again."""
        self._num_attempts += 1
        self._earlier, self._present = self._usage(self._present), Usage()
        return replace(self._request, forced_output_ids=tuple(self._token_ids))

    def add(self, output: RoundOutput) -> RoundOutput:
        """Note what the present attempt gave; the caller gets it with the counts of all attempts."""
        self._token_ids += output.token_ids
        self._present = output.usage
        self.has_ended = output.finish_reason is not None
        if self._cached_prompt_tokens is None:
            self._cached_prompt_tokens = output.usage.cached_prompt_tokens
        if self._num_attempts == 1:
            return output
        return replace(output, usage=self._usage(output.usage))

    def _usage(self, present: Usage) -> Usage:
        earlier = self._earlier
        return Usage(
            prompt_tokens=len(self._request.prompt_ids),
            output_tokens=len(self._token_ids),
            cached_prompt_tokens=self._cached_prompt_tokens or 0,
            num_rounds=earlier.num_rounds + present.num_rounds,
            proposed_tokens=earlier.proposed_tokens + present.proposed_tokens,
            verified_tokens=earlier.verified_tokens + present.verified_tokens,
            accepted_tokens=earlier.accepted_tokens + present.accepted_tokens,
        )

from __future__ import annotations

from collections.abc import AsyncGenerator

from dspine_cluster.api.guarding.admission import Admission
from dspine_cluster.types import FinishReason, GenerateRequest, RoundOutput, SamplingParams, StopConditions

REQUEST = GenerateRequest("r", (1, 2, 3), SamplingParams(), StopConditions(max_tokens=8))


class Clock:
    def __init__(self) -> None:
        self.now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


class Rounds:
    """Gives one token after 0.3 s, four more 0.02 s later, and an end without tokens."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock

    async def generate(self, request: GenerateRequest) -> AsyncGenerator[RoundOutput, None]:
        del request
        self._clock.now_s += 0.3
        yield RoundOutput((1,), "a")
        self._clock.now_s += 0.02
        yield RoundOutput((1, 2, 3, 4), "bcde")
        yield RoundOutput((), "", finish_reason=FinishReason.LENGTH)

    async def check_health(self) -> None:
        """It lives."""

    async def check_ready(self) -> None:
        """It takes requests."""


async def test_the_first_token_is_timed_from_admission_and_later_ones_share_the_time_of_their_round() -> None:
    clock = Clock()
    admission = Admission(4, 100, clock)
    async for _ in admission.run(Rounds(clock), [REQUEST]):
        pass
    figures = admission.stats()
    first, inter = "time_to_first_token_seconds", "inter_token_seconds"
    assert (figures[f"{first}_bucket{{le=0.25}}"], figures[f"{first}_bucket{{le=0.5}}"]) == (0, 1)
    assert (figures[f"{inter}_bucket{{le=0.0025}}"], figures[f"{inter}_bucket{{le=0.01}}"]) == (0, 4)
    assert (figures[f"{first}_count"], figures[f"{inter}_count"]) == (1, 4)
    assert abs(figures[f"{inter}_sum"] - 0.02) < 1e-9

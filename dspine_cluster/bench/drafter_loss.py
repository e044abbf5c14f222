"""How long steps take when many requests lose their drafter at once and move to another."""

from __future__ import annotations

import secrets
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from statistics import median
from typing import Any

from dspine_cluster.bench.drafter_process import drafter_process
from dspine_cluster.bench.environment import describe_environment
from dspine_cluster.config import VerifierConfig
from dspine_cluster.errors import ChannelError, ConfigError
from dspine_cluster.transport.socket import connect, parse_endpoint
from dspine_cluster.transport.waiter import Waiter
from dspine_cluster.types import GenerateRequest, SamplingParams, StopConditions
from dspine_cluster.verifier.committed import Committed
from dspine_cluster.verifier.loading import load_verifier, policy_for
from dspine_cluster.verifier.loop import VerifierLoop


@dataclass(frozen=True, slots=True)
class Step:
    """One pass, and the wait for drafts before it."""

    taken_s: float
    num_rounds: int
    num_plain: int
    """Rounds without a block."""
    num_tokens: int


class Bench:
    """A verifier loop whose requests never end, driven in this thread."""

    def __init__(self, config: VerifierConfig, prompts: Sequence[Sequence[int]]) -> None:
        loaded = load_verifier(config)
        if loaded.drafter_config is None:
            raise ConfigError("without a drafter none can be lost; set one")
        self._secret = config.secret.encode()
        self._hello = loaded.hello
        self._waiter = Waiter()
        self._num_tokens = 0
        self.loop = VerifierLoop(
            loaded.engine,
            loaded.token_bytes,
            engine_config=config.engine,
            drafting_config=config.drafting,
            policy=policy_for(config.drafting.verify, loaded.drafter_config, loaded.engine.token_sizes),
            block_size=loaded.drafter_config.block_size,
            mask_token_id=loaded.drafter_config.mask_token_id,
            deliver=self._count,
            on_drafter_lost=lambda endpoint, is_faulty: None,
            target_fingerprint=loaded.hello.target,
            drafter_fingerprint=loaded.hello.drafter,
        )
        stop = StopConditions(max_tokens=config.engine.max_model_len_tokens, ignore_eos=True)
        for uid, prompt in enumerate(prompts):
            self.loop.submit(
                uid, GenerateRequest("bench", tuple(prompt), SamplingParams(temperature=0.0), stop)
            )
        while len(self.loop.streams.decoding) < len(prompts):
            self.loop.step()

    def connect(self, endpoint: str) -> None:
        """Use the drafter at `endpoint` from the next step on."""
        channel = connect(parse_endpoint(endpoint), self._hello, self._secret, timeout_s=30.0)
        self._waiter.watch(channel)
        self.loop.drafters.connect(endpoint, channel)

    def run(self, num_steps: int, counts: Callable[[Step], bool], max_steps: int = 1000) -> list[Step]:
        """Step until `num_steps` steps have been such that count."""
        steps: list[Step] = []
        while sum(map(counts, steps)) < num_steps:
            if len(steps) == max_steps:
                raise ChannelError(
                    f"not {num_steps} such steps among {max_steps}: drafts do not come in time"
                )
            steps.append(self._step())
        return steps

    def _step(self) -> Step:
        metrics, fallbacks = self.loop.metrics, self.loop.drafters.fallbacks
        rounds, plain = metrics.rounds_total, fallbacks.total()
        self._num_tokens = 0
        started_s = time.perf_counter()
        self._waiter.clear()
        while (wait_s := self.loop.step()) is not None:
            self._waiter.wait(wait_s)
            self._waiter.clear()
        return Step(
            time.perf_counter() - started_s,
            metrics.rounds_total - rounds,
            fallbacks.total() - plain,
            self._num_tokens,
        )

    def _count(self, committed: Sequence[Committed]) -> None:
        self._num_tokens += sum(len(own.token_ids) for own in committed)


def run_drafter_loss(
    config: VerifierConfig, prompts: Sequence[Sequence[int]], num_steps: int
) -> dict[str, Any]:
    """Let one request a prompt decode, `num_steps` steps plainly and as many with a block for each; then kill their
    drafter, give them another one, and time every step until as many have had a block for each again."""
    config = replace(config, secret=secrets.token_hex(16))

    def is_whole(step: Step) -> bool:
        return step.num_rounds == len(prompts) and step.num_plain == 0

    with tempfile.TemporaryDirectory(prefix="dspine-") as folder:
        first, second = (f"unix:{folder}/{name}.sock" for name in ("first", "second"))
        with drafter_process(config, first) as process, drafter_process(config, second):
            bench = Bench(config, prompts)
            plain = bench.run(num_steps, lambda step: True)
            bench.connect(first)
            drafted = [step for step in bench.run(num_steps, is_whole) if is_whole(step)]
            process.kill()
            process.join()
            bench.connect(second)
            after = bench.run(num_steps, is_whole)
            bench.loop.drafters.close()
    moving = after[: next(i for i, step in enumerate(after) if is_whole(step))]
    return {
        "environment": describe_environment(),
        "requests": len(prompts),
        "prompt_tokens": sum(map(len, prompts)),
        "plain": _summary(plain),
        "drafted": _summary(drafted),
        "moving": _summary(moving) | {"plain_rounds": [step.num_plain for step in moving]},
        "drafted_again": _summary([step for step in after if is_whole(step)]),
        "max_moving_over_drafted_median": max(s.taken_s for s in moving) / median(s.taken_s for s in drafted),
    }


def _summary(steps: Sequence[Step]) -> dict[str, Any]:
    times_s = [step.taken_s for step in steps]
    return {
        "step_p50_s": median(times_s),
        "step_max_s": max(times_s),
        "steps_s": times_s,
        "tokens_per_s": sum(step.num_tokens for step in steps) / sum(times_s),
    }

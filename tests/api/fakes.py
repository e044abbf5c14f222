"""A byte-level tokenizer and a deterministic generator that behaves as a verifier does."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import AsyncGenerator
from dataclasses import dataclass, field

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from dspine_cluster.api.answering.token_texts import TokenNames
from dspine_cluster.token_bytes import TokenBytes
from dspine_cluster.types import FinishReason, GenerateRequest, Logprobs, RoundOutput, Usage

CHAT_TEMPLATE = (
    "{% for m in messages %}"
    "{% if m.role == 'assistant' and loop.first %}{{ raise_exception('starts with assistant') }}{% endif %}"
    "<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n"
    "{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
    "{% if enable_thinking is defined and not enable_thinking %}<think></think>{% endif %}"
)
TOOLS_TEMPLATE = (
    "{% if tools %}<tools>{% for tool in tools %}{{ tool | tojson }}{% endfor %}</tools>{% endif %}"
    "{% for m in messages %}<|im_start|>{{ m.role }}\n"
    "{% if m.reasoning_content %}<think>\n{{ m.reasoning_content }}\n</think>\n\n{% endif %}{{ m.content }}"
    "{% for call in m.tool_calls or [] %}[{{ call.function.name }}"
    "{% for key, value in call.function.arguments.items() %} {{ key }}={{ value }}{% endfor %}]{% endfor %}"
    "<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% if enable_thinking %}<think>\n{% endif %}{% endif %}"
)
"""Tells of tools and calls, and opens the reasoning where it is asked for."""
VOCAB_SIZE = 258


def byte_tokenizer(chat_template: str | None = CHAT_TEMPLATE) -> PreTrainedTokenizerFast:
    """256 bytes, then `<|im_start|>` and `<|im_end|>`."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE(vocab={char: index for index, char in enumerate(alphabet)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(
        [AddedToken("<|im_start|>", special=True), AddedToken("<|im_end|>", special=True)]
    )
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, chat_template=chat_template)


NAMES = TokenNames(TokenBytes(byte_tokenizer().backend_tokenizer))


def _logprobs(request: GenerateRequest, num_tokens: int) -> Logprobs | None:
    """Token 65 + i is the likeliest but i; the tokens themselves are less likely than all of them."""
    if request.num_top_logprobs is None:
        return None
    top_ids = tuple(range(65, 65 + request.num_top_logprobs))
    top = tuple(-0.5 * (1 + number) for number in range(len(top_ids)))
    return Logprobs((-20.0,) * num_tokens, (top_ids,) * num_tokens, (top,) * num_tokens)


@dataclass
class FakeGenerator:
    """Writes words that depend on the prompt and the seed, three a round. `fail_after_rounds` raises `error` then.

    With `answer` it writes that instead, `answer_token_chars` a token, and stops.
    """

    answer: str | None = None
    answer_token_chars: int = 4
    round_s: float = 0.0
    rounds: asyncio.Semaphore | None = None
    """Each round takes one, where it is given."""
    error: Exception | None = None
    fail_after_rounds: int = 0
    ends_silently: bool = False
    requests: list[GenerateRequest] = field(default_factory=list)
    num_running: int = 0
    num_aborted: int = 0
    num_finished: int = 0

    async def check_health(self) -> None:
        if self.error is not None:
            raise self.error

    async def check_ready(self) -> None:
        await self.check_health()

    async def generate(self, request: GenerateRequest) -> AsyncGenerator[RoundOutput, None]:
        self.requests.append(request)
        self.num_running += 1
        finished = False
        try:
            num_tokens = 0
            num_rounds = 0
            accepted = 0
            while True:
                await asyncio.sleep(self.round_s)
                if self.rounds is not None:
                    await self.rounds.acquire()
                if self.error is not None and num_rounds == self.fail_after_rounds:
                    raise self.error
                if self.ends_silently and num_rounds:
                    return
                take = min(3, self._length(request) - num_tokens)
                words = [self._word(request, num_tokens + i) for i in range(take)]
                num_tokens += take
                num_rounds += 1
                accepted += take - 1
                is_last = num_tokens == self._length(request)
                reason = FinishReason.LENGTH if num_tokens == request.stop.max_tokens else FinishReason.STOP
                finished = is_last
                yield RoundOutput(
                    token_ids=tuple(range(take)),
                    text="".join(words),
                    accepted_tokens=take - 1,
                    finish_reason=reason if is_last else None,
                    usage=Usage(
                        prompt_tokens=len(request.prompt_ids),
                        output_tokens=num_tokens,
                        cached_prompt_tokens=len(request.prompt_ids) // 16 * 16,
                        num_rounds=num_rounds,
                        proposed_tokens=15 * num_rounds,
                        verified_tokens=15 * num_rounds,
                        accepted_tokens=accepted,
                    ),
                    logprobs=_logprobs(request, take),
                    prompt_logprobs=_logprobs(request, len(request.prompt_ids) - 1)
                    if request.prompt_logprobs and num_rounds == 1
                    else None,
                )
                if is_last:
                    return
        finally:
            self.num_running -= 1
            self.num_finished += finished
            self.num_aborted += not finished

    def _length(self, request: GenerateRequest) -> int:
        if self.answer is None:
            return request.stop.max_tokens
        return min(-(-len(self.answer) // self.answer_token_chars), request.stop.max_tokens)

    def _word(self, request: GenerateRequest, index: int) -> str:
        if self.answer is None:
            return self.word(request, index)
        return self.answer[index * self.answer_token_chars :][: self.answer_token_chars]

    @staticmethod
    def word(request: GenerateRequest, index: int) -> str:
        digest = hashlib.sha256(repr((request.prompt_ids, request.sampling.seed, index)).encode()).hexdigest()
        return f"{digest[:4]} "

    @classmethod
    def text(cls, request: GenerateRequest) -> str:
        return "".join(cls.word(request, index) for index in range(request.stop.max_tokens))

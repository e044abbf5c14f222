"""Whether sampled answers fit the JSON schemas that they were asked for, and how many tokens a round gives."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from dataclasses import dataclass
from random import Random
from typing import Any

from dspine_cluster.api.prompting.chat_template import ChatTokenizer
from dspine_cluster.api.schema import ChatCompletionRequest
from dspine_cluster.api.structured.output_grammar import AnswerForm, chat_grammar
from dspine_cluster.bench.environment import describe_environment
from dspine_cluster.bench.random_schemas import Schema, random_schema
from dspine_cluster.config import VerifierConfig
from dspine_cluster.local_pair import local_pair
from dspine_cluster.sources import locate_model
from dspine_cluster.types import FinishReason, GenerateRequest, SamplingParams, StopConditions, Usage
from dspine_cluster.verifier.service import VerifierService


@dataclass(frozen=True, slots=True)
class Answer:
    """What came of one schema."""

    schema: Schema
    text: str
    is_cut: bool
    """By `max_tokens`; then it cannot be valid."""
    is_valid: bool
    usage: Usage


def run_schemas(
    config: VerifierConfig,
    *,
    count: int,
    temperature: float,
    max_tokens: int,
    seed: int,
    concurrency: int,
    done: Callable[[], None],
) -> dict[str, Any]:
    """Ask for `count` random schemas, `concurrency` at a time; `done` is called after each answer."""
    rng = Random(f"schemas {seed}")
    schemas = [random_schema(rng) for _ in range(count)]
    tokenizer = ChatTokenizer.from_folder(locate_model(config.target))
    sampling, stop = SamplingParams(temperature=temperature), StopConditions(max_tokens=max_tokens)

    async def all_answers(verifier: VerifierService) -> list[Answer]:
        free = asyncio.Semaphore(concurrency)

        async def ask(schema: Schema) -> Answer:
            async with free:
                answer = await _answer(verifier, await _request(tokenizer, schema, sampling, stop), schema)
            done()
            return answer

        return await asyncio.gather(*(ask(schema) for schema in schemas))

    with local_pair(config) as verifier:
        answers = asyncio.run(all_answers(verifier))
    return {
        "environment": describe_environment(),
        "settings": {"temperature": temperature, "max_tokens": max_tokens, "seed": seed},
        **summarise(answers),
    }


def summarise(answers: list[Answer]) -> dict[str, Any]:
    """Counts of answers, and the acceptance length over those that were not cut."""
    whole = [answer for answer in answers if not answer.is_cut]
    num_rounds = sum(answer.usage.num_rounds for answer in whole)
    # The token that prefill yields belongs to no round.
    num_tokens = sum(answer.usage.output_tokens - 1 for answer in whole)
    return {
        "num_schemas": len(answers),
        "num_valid": sum(answer.is_valid for answer in whole),
        "num_cut": len(answers) - len(whole),
        "acceptance_length": num_tokens / num_rounds if num_rounds else None,
        "invalid": [
            {"schema": answer.schema, "text": answer.text} for answer in whole if not answer.is_valid
        ],
    }


async def _request(
    tokenizer: ChatTokenizer, schema: Schema, sampling: SamplingParams, stop: StopConditions
) -> GenerateRequest:
    content = f"Answer with JSON that fits this schema: {json.dumps(schema, ensure_ascii=False)}"
    body = ChatCompletionRequest.model_validate(
        {
            "messages": [{"role": "user", "content": content}],
            "response_format": {"type": "json_schema", "json_schema": {"name": "answer", "schema": schema}},
        }
    )
    prompt = await tokenizer.encode_chat(body.messages, {})
    form = AnswerForm(prompt.thinking, tokenizer.knows_reasoning, tokenizer.call_forms[0])
    return GenerateRequest(
        "schema", prompt.token_ids, sampling, stop, grammar=await chat_grammar(body, [], form)
    )


async def _answer(verifier: VerifierService, request: GenerateRequest, schema: Schema) -> Answer:
    texts = []
    async for output in verifier.generate(request):
        texts.append(output.text)
    text = "".join(texts)
    is_cut = output.finish_reason is FinishReason.LENGTH
    return Answer(schema, text, is_cut, not is_cut and fits(text, schema), output.usage)


def fits(text: str, schema: Schema) -> bool:
    """Whether `text` is JSON that the schema allows, by a validator that knows nothing of grammars."""
    import jsonschema

    try:
        jsonschema.validate(json.loads(text), schema, format_checker=jsonschema.FormatChecker())
    except (ValueError, jsonschema.ValidationError):
        return False
    return True

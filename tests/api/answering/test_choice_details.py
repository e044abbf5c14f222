from __future__ import annotations

from dspine_cluster.api.answering.choice_details import AnswerOptions, ChoiceDetails
from dspine_cluster.api.bodies import TextChoice
from dspine_cluster.api.schema import CompletionRequest
from dspine_cluster.types import RoundOutput, Usage
from tests.api.fakes import NAMES, byte_tokenizer

A, B, *E_ACUTE = byte_tokenizer().encode("ABé")
USAGE = Usage(num_rounds=1, proposed_tokens=15, verified_tokens=3, accepted_tokens=2)


def filled(details: ChoiceDetails, finish_reason: str | None = None) -> dict[str, object]:
    choice = TextChoice(index=0, text="", finish_reason=finish_reason, logprobs=None)
    details.fill(choice)
    return choice.model_dump(exclude_unset=True, exclude={"index", "text", "finish_reason", "logprobs"})


def options(**fields: object) -> AnswerOptions:
    body = CompletionRequest.model_validate({"prompt": "x", **fields})
    return AnswerOptions.of(body, NAMES.token_bytes)


def test_nothing_is_told_that_was_not_asked_for() -> None:
    details = ChoiceDetails(options())
    details.push(RoundOutput((A,), "A", usage=USAGE))
    assert filled(details, "stop") == {}


def test_each_token_has_its_origin_and_all_texts_join() -> None:
    details = ChoiceDetails(options(dspine={"include_origins": True}))
    details.push(RoundOutput((A, E_ACUTE[0]), "A", 1))
    details.push(RoundOutput((E_ACUTE[1], B), "éB", 2))
    assert filled(details) == {
        "dspine": {
            "tokens": [
                {"text": "A", "accepted": True},
                {"text": "", "accepted": False},
                {"text": "é", "accepted": True},
                {"text": "B", "accepted": True},
            ]
        }
    }
    assert filled(details) == {"dspine": {"tokens": []}}


def test_statistics_come_when_a_choice_has_ended() -> None:
    details = ChoiceDetails(options(dspine={"include_stats": True}, return_token_ids=True))
    details.push(RoundOutput((A, B, A), "ABA", 2, usage=USAGE))
    assert filled(details) == {"token_ids": [A, B, A]}
    last = filled(details, "stop")
    assert last["token_ids"] == []
    assert isinstance(last["dspine"], dict)
    assert last["dspine"]["stats"]["acceptance_length"] == 3.0


def test_usage_in_every_event_needs_usage_at_all() -> None:
    for include, both in ((True, True), (False, False)):
        stream = {"include_usage": include, "continuous_usage_stats": True}
        assert options(stream_options=stream).continuous_usage == both

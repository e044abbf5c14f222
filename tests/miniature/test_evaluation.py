from __future__ import annotations

import pytest
import torch

from dspine_cluster.miniature.data.conversation import Conversation
from dspine_cluster.miniature.drafter_loop import DrafterPair, new_drafter
from dspine_cluster.miniature.encoding import Encoder
from dspine_cluster.miniature.evaluation import (
    Acceptance,
    Answer,
    CallScore,
    acceptance,
    answers,
    call_score,
    is_right,
    pooled,
    tool_call,
)
from dspine_cluster.miniature.settings import Settings
from dspine_cluster.models.dflash import DFlash
from dspine_cluster.models.draft_sampling import DraftSampling
from dspine_cluster.models.drafter import DraftContext, DraftOutput
from dspine_cluster.models.target import TargetModel


def answer(expected: str, text: str) -> Answer:
    return Answer(Conversation((), expected=expected), [], [], text)


def test_arithmetic_is_right_when_the_last_number_is() -> None:
    assert is_right(answer("12", "7 + 5 = 12.\nAnswer: 12"))
    assert not is_right(answer("12", "7 + 5 = 12.\nAnswer: 13"))
    assert not is_right(answer("12", "no idea"))


def test_a_tool_call_is_right_in_any_order_of_arguments() -> None:
    expected = '{"arguments": {"a": 1, "b": "x"}, "name": "f"}'
    text = '<tool_call>\n{"name": "f", "arguments": {"b": "x", "a": 1}}\n</tool_call>'
    assert is_right(answer(expected, text))
    assert not is_right(answer(expected, text.replace("1", "2")))
    assert not is_right(answer(expected, text.replace('"f"', '"g"')))


@pytest.mark.parametrize(
    "text", ["Hello", "<tool_call>\n{broken\n</tool_call>", '<tool_call>\n["list"]\n</tool_call>']
)
def test_what_is_no_valid_call_is_none(text: str) -> None:
    assert tool_call(text) is None


def test_calls_are_scored_by_form_name_and_arguments() -> None:
    expected = '{"arguments": {"a": 1, "b": "x"}, "name": "f"}'

    def text(name: str, b: str) -> str:
        return f'<tool_call>\n{{"name": "{name}", "arguments": {{"a": 1, "b": "{b}"}}}}\n</tool_call>'

    given = [answer(expected, t) for t in (text("f", "x"), text("f", "y"), text("g", "x"), "no call")]
    assert call_score(given) == CallScore(
        expected=4, valid_json=3, right_name=2, right_arguments=3, expected_arguments=8
    )


def test_prompts_without_an_expected_call_are_not_scored() -> None:
    given = [answer("12", "Answer: 12"), Answer(Conversation(()), [], [], "Hello")]
    assert call_score(given).expected == 0


def test_answers_do_not_depend_on_the_batch(target: TargetModel, encoder: Encoder) -> None:
    three = answers(target, encoder, "chat", 3, seed=1, max_new_tokens=8)
    one = answers(target, encoder, "chat", 1, seed=1, max_new_tokens=8)
    assert three[0].tokens == one[0].tokens


class Oracle(DFlash):
    """Proposes the next tokens of the given answers, the first `right` of them truthfully."""

    def __init__(self, pair: DrafterPair, given: list[Answer], right: int) -> None:
        super().__init__(pair.drafter.config, pair.drafter.embedding, pair.drafter.lm_head)
        self.given = [a.prompt_tokens + a.tokens + [0] * 20 for a in given]
        self.right = right

    def draft(
        self, anchors: torch.Tensor, positions: torch.Tensor, context: DraftContext, sampling: DraftSampling
    ) -> DraftOutput:
        at = int(positions[0])
        row = next(r for r in self.given if len(r) > at and r[at] == int(anchors[0]))
        tokens = torch.tensor([row[at + 1 : at + 16]])
        tokens[:, self.right :] += 1
        empty = torch.zeros(1, 15, 16)
        return DraftOutput(tokens, empty.long(), empty, empty[..., 0])


@pytest.mark.parametrize(("right", "expected_rounds"), [(0, 11), (1, 6), (15, 1)])
def test_rounds_are_counted_like_decoding_would(
    target: TargetModel, encoder: Encoder, settings: Settings, right: int, expected_rounds: int
) -> None:
    given = [
        a for a in answers(target, encoder, "chat", 4, seed=2, max_new_tokens=12) if len(a.tokens) == 12
    ][:1]
    pair = new_drafter("dflash", settings, target).requires_grad_(False)
    pair.drafter = Oracle(pair, given, right).requires_grad_(False)
    measured = acceptance(target, pair, given)
    assert (measured.rounds, measured.committed_tokens) == (expected_rounds, 11)


def test_pooled_figures_weigh_rounds_alike() -> None:
    assert pooled([Acceptance(1, 9), Acceptance(9, 11)]).length == 2.0


def test_without_a_round_there_is_no_length(
    target: TargetModel, encoder: Encoder, settings: Settings
) -> None:
    given = answers(target, encoder, "chat", 2, seed=2, max_new_tokens=1)
    pair = new_drafter("dflash", settings, target).requires_grad_(False)
    assert acceptance(target, pair, given).length == 0.0

from __future__ import annotations

from pathlib import Path

import pytest

from dspine_cluster.api.schema import ChatCompletionRequest
from dspine_cluster.miniature.prompts import TASK_NAMES

FOLDER = Path(__file__).parents[1] / "examples"


def test_every_task_of_the_miniature_has_an_example() -> None:
    assert sorted(path.stem for path in FOLDER.glob("*.json")) == sorted(TASK_NAMES)


@pytest.mark.parametrize("task", TASK_NAMES)
def test_an_example_is_a_chat_request(task: str) -> None:
    request = ChatCompletionRequest.model_validate_json((FOLDER / f"{task}.json").read_bytes())
    assert request.messages[-1].role == "user"
    assert request.temperature == 0

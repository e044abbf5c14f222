from __future__ import annotations

import openai
import pytest

from tests.api.conftest import Api


def test_models_are_listed_and_retrieved(api: Api) -> None:
    assert [model.id for model in api.openai.models.list()] == ["fake"]
    assert api.openai.models.retrieve("fake").id == "fake"


def test_a_model_tells_what_clients_plan_with(api: Api) -> None:
    [card] = api.http.get("/v1/models").json()["data"]
    assert card.pop("created") > 1_700_000_000
    assert card == {
        "id": "fake",
        "object": "model",
        "owned_by": "dspine_cluster",
        "root": "fake",
        "parent": None,
        "max_model_len": 512,
    }


def test_another_model_is_not_found(api: Api) -> None:
    with pytest.raises(openai.NotFoundError) as caught:
        api.openai.completions.create(model="gpt-4", prompt="x")
    assert caught.value.code == "model_not_found"
    assert caught.value.param == "model"

import re
from string import Formatter

import pytest

from dspine_cluster.miniature.data import arithmetic_requests

LISTS = {
    "ASK": "e",
    "GAIN": "niab",
    "LOSS": "niab",
    "GROUPS": "niab",
    "SHARE": "itb",
    "TWO_STEPS": "niabc",
    "MONEY": "niabt",
}
"""Slots that every template of a list fills."""


@pytest.mark.parametrize("name", LISTS)
def test_every_template_fills_the_slots_of_its_list(name: str) -> None:
    for template in getattr(arithmetic_requests, name):
        assert set(LISTS[name]) <= {slot for _, slot, _, _ in Formatter().parse(template)}, template


@pytest.mark.parametrize("name", LISTS)
def test_no_template_stands_twice_in_a_list(name: str) -> None:
    templates = getattr(arithmetic_requests, name)
    assert len(set(templates)) == len(templates)


@pytest.mark.parametrize("name", LISTS)
def test_the_pronoun_opens_a_sentence_and_follows_the_name(name: str) -> None:
    for template in getattr(arithmetic_requests, name):
        for match in re.finditer(re.escape("{p}"), template):
            before = template[: match.start()]
            assert before.endswith((". ", "? ")), template
            assert "{n}" in before, template

from random import Random
from string import Formatter

import pytest

from dspine_cluster.miniature.data.office import OFFICE_TOOLS, OfficeTool


def slots(template: str) -> set[str]:
    return {name for _, name, _, _ in Formatter().parse(template) if name}


@pytest.mark.parametrize("tool", OFFICE_TOOLS, ids=lambda tool: tool.name)
def test_every_request_names_every_parameter(tool: OfficeTool) -> None:
    assert all(slots(request) == set(tool.parameters) for request in tool.requests)


@pytest.mark.parametrize("tool", OFFICE_TOOLS, ids=lambda tool: tool.name)
def test_vague_requests_lack_exactly_the_parameter_they_say(tool: OfficeTool) -> None:
    assert all(slots(request) == set(tool.parameters) - {missing} for request, missing in tool.vague)


@pytest.mark.parametrize("tool", OFFICE_TOOLS, ids=lambda tool: tool.name)
def test_summaries_say_only_what_is_known(tool: OfficeTool) -> None:
    known = {**tool.draw(Random(0)), **tool.respond(Random(0))}
    assert all(summary.format(**known) for summary in tool.summaries)


def test_results_never_hide_a_parameter() -> None:
    assert all(not set(tool.result) & set(tool.parameters) for tool in OFFICE_TOOLS)

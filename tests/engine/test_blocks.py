from __future__ import annotations

import torch

from dspine_cluster.engine.blocks import Distributions, draft_distributions
from dspine_cluster.engine.logit_rules import LogitRules
from dspine_cluster.types import SamplingParams, StopConditions
from tests.engine.block_cases import Block, batch_of


def _rules(num_prompt_tokens: int) -> LogitRules:
    return LogitRules(
        SamplingParams(),
        StopConditions(max_tokens=9),
        num_prompt_tokens=num_prompt_tokens,
        eos_token_ids=[],
        mask_token_id=None,
        vocab_size=8,
        device=torch.device("cpu"),
    )


def test_output_positions_count_from_the_end_of_the_prompt() -> None:
    rules = _rules(num_prompt_tokens=3)
    blocks = [Block(rules, [1, 2, 3]), Block(rules, [1, 2, 3, 4, 5], [6])]
    assert batch_of(blocks).output_indices == [0, 2]


def test_only_the_verified_part_of_a_draft_is_read() -> None:
    candidates = torch.tensor([[1, 2], [3, 4], [5, 6]])
    probs = torch.tensor([[0.5, 0.5], [0.25, 0.75], [1.0, 0.0]])
    block = Block(_rules(0), [0], [2, 3], Distributions(candidates, probs))
    assert [rows.tolist() for rows in draft_distributions(batch_of([block]))] == [
        [[1, 2], [3, 4], [0, 0]],
        [[0.5, 0.5], [0.25, 0.75], [0.0, 0.0]],
    ]


def test_the_last_row_has_the_distribution_of_a_proposal_that_was_cut_off() -> None:
    candidates = torch.tensor([[1, 2], [3, 4], [5, 6]])
    probs = torch.tensor([[0.5, 0.5], [0.25, 0.75], [1.0, 0.0]])
    block = Block(_rules(0), [0], [2], Distributions(candidates, probs), is_cut=True)
    assert [rows.tolist() for rows in draft_distributions(batch_of([block]))] == [
        [[1, 2], [3, 4]],
        [[0.5, 0.5], [0.25, 0.75]],
    ]


def test_proposals_without_a_distribution_are_certain() -> None:
    distributions = draft_distributions(batch_of([Block(_rules(0), [0], [4, 2])]))
    assert [rows.tolist() for rows in distributions] == [[[4], [2], [0]], [[1.0], [1.0], [0.0]]]


def test_rows_are_wide_enough_for_a_candidate_where_drafts_have_none() -> None:
    nothing = Distributions(torch.zeros(0, 0, dtype=torch.int32), torch.zeros(0, 0))
    distributions = draft_distributions(batch_of([Block(_rules(0), [0], (), nothing)]))
    assert [rows.tolist() for rows in distributions] == [[[0]], [[0.0]]]

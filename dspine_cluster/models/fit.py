"""Whether a drafter belongs to a target."""

from __future__ import annotations

from dspine_cluster.errors import MismatchError
from dspine_cluster.models.config import TargetConfig
from dspine_cluster.models.drafter_config import DrafterConfig


def check_fit(target: TargetConfig, drafter: DrafterConfig) -> None:
    """Check that a drafter reads this target's hidden states and writes its tokens.

    Raises:
        MismatchError: naming every figure that differs.
    """
    problems = [
        f"{name} is {theirs} in the drafter and {ours} in the target"
        for name, ours, theirs in (
            ("hidden_size", target.hidden_size, drafter.hidden_size),
            ("vocab_size", target.vocab_size, drafter.vocab_size),
        )
        if ours != theirs
    ]
    beyond = [i for i in drafter.target_layer_ids if i >= target.num_layers]
    if beyond:
        problems.append(f"target_layer_ids {beyond} lie beyond the target's {target.num_layers} layers")
    if problems:
        raise MismatchError("target and drafter do not fit together: " + "; ".join(problems))

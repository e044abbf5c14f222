"""`python -m dspine_cluster.bench.gpu_round`: what a round costs on this GPU, beside the least that it could.

Needs torch, triton, numpy and this repository; nothing has to be installed.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import cast


def main(arguments: Sequence[str] | None = None) -> int:
    """Exit code 0 where every check and every part went well, 1 where one did not, 2 where nothing could be run."""
    options = _parser().parse_args(arguments)
    if find_spec("dspine_kernels") is None:  # a copied tree
        sys.path.append(str(Path(__file__).parents[2] / "kernels"))
    if options.without_triton:
        sys.modules["triton"] = cast(ModuleType, None)  # what importing then finds: nothing
    from dspine_cluster.bench.gpu_run import Settings, run_gpu_round
    from dspine_cluster.errors import DspineError

    names = ("27b", "8b") if options.model == "both" else (options.model,)
    settings = Settings.tiny(names) if options.dry_run else Settings(names, budget_s=options.budget_s)
    try:
        report = run_gpu_round(settings, options.json, options.commit)
    except DspineError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return 0 if report.is_good else 1


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m dspine_cluster.bench.gpu_round", description=__doc__)
    parser.add_argument("--model", choices=("27b", "8b", "both"), default="both", help="default: both")
    parser.add_argument(
        "--budget-s",
        type=float,
        default=330.0,
        help="what there is no time for is dropped, least important first; default: 330",
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="written after every part")
    parser.add_argument("--commit", help="to be reported; default: what git says")
    parser.add_argument(
        "--without-triton",
        action="store_true",
        help="plain torch operations, as if Triton were not installed",
    )
    parser.add_argument("--dry-run", action="store_true", help="the same at tiny dimensions on the CPU")
    return parser


if __name__ == "__main__":
    sys.exit(main())

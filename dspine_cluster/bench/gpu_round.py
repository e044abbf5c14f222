"""`python -m dspine_cluster.bench.gpu_round`: what a round costs on this GPU, beside the least that it could.

Needs torch, triton, numpy and this repository; nothing has to be installed.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path


def main(arguments: Sequence[str] | None = None) -> int:
    """Exit code 0 where every check and every part went well."""
    options = _parser().parse_args(arguments)
    if find_spec("dspine_kernels") is None:  # a copied tree
        sys.path.append(str(Path(__file__).parents[2] / "kernels"))
    from dspine_cluster.bench.gpu_run import Settings, run_gpu_round

    names = ("27b", "8b") if options.model == "both" else (options.model,)
    settings = Settings.tiny(names) if options.dry_run else Settings(names, budget_s=options.budget_s)
    return 0 if run_gpu_round(settings, options.json, options.commit).is_good else 1


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
    parser.add_argument("--dry-run", action="store_true", help="the same at tiny dimensions on the CPU")
    return parser


if __name__ == "__main__":
    sys.exit(main())

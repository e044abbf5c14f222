"""Compile every kernel at its production shapes ahead of time: `python -m dspine_kernels.aot [--json FILE]`.

Needs Triton, but no GPU. Says what each program takes of shared memory and registers, and fails where that is
more than its specification allows.
"""

from __future__ import annotations

import argparse
import importlib
import importlib.util
import json
import pkgutil
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

import dspine_kernels
from dspine_kernels.aot_spec import AotSpec

WARP_SIZE = 32
SHARED_BYTES = {80: 163 * 1024, 90: 227 * 1024, 100: 227 * 1024}
"""Compute capability, as tens and ones, to shared memory that one program may have."""


@dataclass(frozen=True)
class Resources:
    """What one compiled kernel takes."""

    kernel: str
    arch: str
    shared_bytes: int
    registers: int
    spill_bytes: int
    """Local memory a thread."""
    excess: str | None = None
    """Which bound it exceeds."""


def all_specs() -> Iterator[AotSpec]:
    """The specifications of every operation that has Triton kernels."""
    for operation in pkgutil.iter_modules(dspine_kernels.__path__):
        name = f"dspine_kernels.{operation.name}.triton"
        if operation.ispkg and importlib.util.find_spec(name) is not None:
            yield from importlib.import_module(name).aot_specs()


def compile_spec(spec: AotSpec, capability: int) -> Resources:
    """Compile for `sm_<capability>`."""
    names = spec.kernel.arg_names
    signature = {name: spec.signature.get(name, "constexpr") for name in names}
    missing = {name for name, type_ in signature.items() if type_ == "constexpr"} ^ set(spec.constexprs)
    assert not missing, f"{spec.name}: {sorted(missing)} are either constants or have a type"
    aligned = [
        name for name, type_ in signature.items() if type_.startswith("*") or name in spec.divisible_by_16
    ]
    attributes = {(names.index(name),): [["tt.divisibility", 16]] for name in aligned}
    source = ASTSource(spec.kernel, signature, dict(spec.constexprs), attributes)
    options = {"num_warps": spec.num_warps, "num_stages": spec.num_stages}
    compiled = triton.compile(source, target=GPUTarget("cuda", capability, WARP_SIZE), options=options)
    registers, spill_bytes = _usage(compiled.asm["cubin"])
    shared_bytes = int(compiled.metadata.shared)
    bounds = {
        "shared memory": (shared_bytes, min(spec.max_shared_bytes, SHARED_BYTES[capability])),
        "spilled registers": (spill_bytes, spec.max_spill_bytes),
    }
    excess = [f"{what}: {got} > {bound} bytes" for what, (got, bound) in bounds.items() if got > bound]
    return Resources(
        kernel=spec.name,
        arch=f"sm_{capability}",
        shared_bytes=shared_bytes,
        registers=registers,
        spill_bytes=spill_bytes,
        excess="; ".join(excess) or None,
    )


def _usage(cubin: bytes) -> tuple[int, int]:
    """Registers and bytes of local memory a thread."""
    tool = triton.knobs.nvidia.cuobjdump.path
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        command = [tool, "--dump-resource-usage", file.name]
        said = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    found = re.search(r"REG:(\d+) STACK:(\d+)", said)
    assert found, said
    return int(found[1]), int(found[2])


def _print_table(results: Sequence[Resources]) -> None:
    width = max((len(result.kernel) for result in results), default=0)
    print(f"{'kernel':{width}}  arch    shared bytes  registers  spill bytes")
    for r in results:
        row = f"{r.kernel:{width}}  {r.arch:6}  {r.shared_bytes:12}  {r.registers:9}  {r.spill_bytes:11}"
        print(row + (f"  {r.excess}" if r.excess else ""))


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the table; 1 where a kernel exceeds its bounds."""
    parser = argparse.ArgumentParser(prog="python -m dspine_kernels.aot", description=__doc__)
    parser.add_argument("--json", type=Path, help="write the table to this file")
    parser.add_argument("--only", default="", help="only kernels whose name has this in it")
    parser.add_argument("--arch", type=int, action="append", choices=list(SHARED_BYTES), help="default: all")
    options = parser.parse_args(arguments)
    specs = [spec for spec in all_specs() if options.only in spec.name]
    results = [compile_spec(spec, arch) for spec in specs for arch in options.arch or SHARED_BYTES]
    _print_table(results)
    if options.json:
        table = {"triton": triton.__version__, "results": [asdict(result) for result in results]}
        options.json.write_text(json.dumps(table, indent=1) + "\n")
    return int(any(result.excess for result in results))


if __name__ == "__main__":
    sys.exit(main())

"""The arrows between folders point down only."""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent

# Every folder of the library, and the project's folders that it may import beside itself and the shared values below.
ALLOWED = {
    "core": set[str](),
    "models": {"kernels"},
    "engine": {"core", "models", "kernels"},
    "transport": {"core"},
    "verifier": {"core", "models", "engine", "transport", "observability"},
    "drafter": {"core", "models", "engine", "transport", "observability"},
    "api": {"core", "observability"},
    "observability": {"core"},
    "miniature": {"core", "models", "kernels"},
    "sim": {"core"},
    "bench": {
        "core",
        "models",
        "kernels",
        "engine",
        "transport",
        "api",
        "verifier",
        "drafter",
        "miniature",
        "sim",
    },
}
SHARED = {"types", "errors", "config"}


def imported_modules(path: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: imports are absolute"
            yield str(node.module)
            if node.module == "dspine_cluster":
                yield from (f"dspine_cluster.{alias.name}" for alias in node.names)


def sources(folder: str) -> list[Path]:
    return sorted((ROOT / folder).rglob("*.py"))


def folder_of(module: str) -> str | None:
    """The project folder that a module belongs to; None for other packages and for the package itself."""
    parts = module.split(".")
    if parts[0] == "dspine_kernels":
        return "kernels"
    if parts[0] == "dspine_serve":
        return "serve"
    return parts[1] if parts[0] == "dspine_cluster" and len(parts) > 1 else None


@pytest.mark.parametrize("folder", ALLOWED)
def test_a_folder_imports_only_what_lies_below_it(folder: str) -> None:
    for path in sources(f"dspine_cluster/{folder}"):
        for module in imported_modules(path):
            target = folder_of(module)
            allowed = ALLOWED[folder] | SHARED | {folder}
            # Where models are and what they are is found out in one place for both sides.
            allowed |= {"sources", "identity"} if folder in {"verifier", "drafter", "bench"} else set()
            allowed |= {"token_bytes"} if folder in {"verifier", "api", "bench"} else set()
            allowed |= {"local_pair", "garbage"} if folder == "bench" else set()
            allowed |= {"command"} if folder == "miniature" else set()
            assert target is None or target in allowed, f"{path.relative_to(ROOT)} imports {module}"


def test_every_folder_of_the_library_has_a_rule() -> None:
    folders = {path.name for path in (ROOT / "dspine_cluster").iterdir() if (path / "__init__.py").exists()}
    assert folders == set(ALLOWED)


def test_the_core_needs_only_the_standard_library() -> None:
    for path in sources("dspine_cluster/core"):
        for module in imported_modules(path):
            top = module.split(".")[0]
            assert top in sys.stdlib_module_names or top == "dspine_cluster", f"{path}: {module}"


@pytest.mark.parametrize(
    ("package", "owner"), [("ray", "deployments/dspine_serve"), ("triton", "kernels/dspine_kernels")]
)
def test_only_one_folder_imports(package: str, owner: str) -> None:
    for path in [*sources("dspine_cluster"), *sources("kernels"), *sources("deployments")]:
        if not path.is_relative_to(ROOT / owner):
            assert package not in {module.split(".")[0] for module in imported_modules(path)}, path


def test_only_kernels_and_their_compilation_import_triton() -> None:
    for path in sources("kernels"):
        if path.name != "aot.py" and not path.name.startswith("triton"):
            assert "triton" not in {module.split(".")[0] for module in imported_modules(path)}, path


def test_the_library_does_not_import_its_deployment() -> None:
    for path in [*sources("dspine_cluster"), *sources("kernels")]:
        assert "serve" not in {folder_of(module) for module in imported_modules(path)}, path


def test_kernels_is_no_package_so_that_the_one_of_that_name_stays_importable() -> None:
    assert not (ROOT / "kernels" / "__init__.py").exists()

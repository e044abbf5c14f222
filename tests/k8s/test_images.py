from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest
import yaml

from dspine_serve.proxy_guard import PROXY_SETTINGS

ROOT = Path(__file__).parents[2]
IMAGES = ("cpu", "gpu")


def _dockerfile(kind: str) -> str:
    return (ROOT / "k8s" / "docker" / f"{kind}.Dockerfile").read_text()


@pytest.mark.parametrize("kind", IMAGES)
def test_an_image_copies_what_is_there(kind: str) -> None:
    sources = [
        source
        for line in re.findall(r"^COPY (?:--\S+ )*(.+)$", _dockerfile(kind), re.MULTILINE)
        for source in line.split()[:-1]
    ]
    assert sources
    for source in sources:
        assert (ROOT / source).exists(), source


@pytest.mark.parametrize("kind", IMAGES)
def test_an_image_has_the_ray_version_of_the_manifests_and_of_the_constraints(kind: str) -> None:
    service = yaml.safe_load((ROOT / "k8s" / "base" / "rayservice.yaml").read_text())
    version = service["spec"]["rayClusterConfig"]["rayVersion"]
    assert f"rayproject/ray:{version}-" in _dockerfile(kind)
    assert f"ray=={version}\n" in (ROOT / "constraints.txt").read_text()


@pytest.mark.parametrize(("name", "value"), PROXY_SETTINGS.items())
@pytest.mark.parametrize("kind", IMAGES)
def test_the_proxies_of_an_image_are_guarded(kind: str, name: str, value: str) -> None:
    assert f"ENV {name}={value}\n" in _dockerfile(kind)
    assert f"export {name} ?= {value}\n" in (ROOT / "Makefile").read_text()


@pytest.mark.parametrize("kind", IMAGES)
def test_an_image_has_all_that_the_package_is_built_from(kind: str) -> None:
    """Among what is sent to the build at all."""
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())
    project, wheel = settings["project"], settings["tool"]["hatch"]["build"]["targets"]["wheel"]
    needed = {"pyproject.toml", "constraints.txt", project["readme"], *project["license-files"]}
    needed |= {package.split("/")[0] for package in wheel["packages"]}
    copied = set(
        re.findall(r"[\w.-]+", " ".join(re.findall(r"^COPY (.+) \S+$", _dockerfile(kind), re.MULTILINE)))
    )
    sent = {line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if line.startswith("!")}
    assert needed <= copied & sent


@pytest.mark.parametrize("kind", IMAGES)
def test_extras_that_an_image_installs_are_there(kind: str) -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    [named] = re.findall(r'"\.\[(.+)\]"', _dockerfile(kind))
    assert set(named.split(",")) <= extras.keys()


@pytest.mark.parametrize("kind", IMAGES)
def test_an_image_s_python_is_one_that_the_package_takes(kind: str) -> None:
    [(major, minor)] = re.findall(r"^FROM \S+-py(\d)(\d+)-", _dockerfile(kind), re.MULTILINE)
    classifiers = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["classifiers"]
    assert f"Programming Language :: Python :: {major}.{minor}" in classifiers

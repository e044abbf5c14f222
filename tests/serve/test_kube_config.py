"""`serveConfigV2` of the overlays is the application of the Serve config files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml
from pydantic import ValidationError

from dspine_cluster.errors import ConfigError
from dspine_serve.kube_config import kube_config, main, make_patch

ROOT = Path(__file__).parents[2]
SOURCES = {
    "cpu-miniature": "deployments.yaml",
    "gpu-single-node": "deployments/single-node.yaml",
    "gpu-multi-node": "deployments/multi-node.yaml",
}


@pytest.mark.parametrize("overlay", SOURCES)
def test_an_overlay_serves_the_application_of_its_config_file(
    overlay: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(ROOT)
    shipped = ROOT / "k8s" / "overlays" / overlay / "serve-config.yaml"
    assert shipped.read_text() == make_patch(Path(SOURCES[overlay]))


@pytest.mark.parametrize("source", SOURCES.values())
def test_only_where_http_listens_differs(source: str) -> None:
    config: dict[str, Any] = yaml.safe_load((ROOT / source).read_text())
    made = kube_config(config)
    assert made["applications"] == config["applications"]
    assert made["http_options"] == config["http_options"] | {"host": "0.0.0.0"}
    assert made["proxy_location"] == "EveryNode"


@pytest.mark.parametrize(("key", "value"), [("unknown", 1), ("verifiers", {"num_replicas": 0})])
def test_what_the_application_would_refuse_is_refused(key: str, value: Any) -> None:
    config: dict[str, Any] = yaml.safe_load((ROOT / "deployments.yaml").read_text())
    config["applications"][0]["args"][key] = value
    with pytest.raises(ValidationError, match=key):
        kube_config(config)


def test_another_port_than_pods_open_is_refused() -> None:
    config: dict[str, Any] = yaml.safe_load((ROOT / "deployments.yaml").read_text())
    with pytest.raises(ConfigError, match=r"http_options\.port must be 8000"):
        kube_config(config | {"http_options": {"port": 8001}})


def test_a_config_without_http_options_gets_those_of_a_pod() -> None:
    config: dict[str, Any] = yaml.safe_load((ROOT / "deployments.yaml").read_text())
    assert kube_config(config | {"http_options": None})["http_options"] == {"host": "0.0.0.0"}


def test_settings_of_the_policy_are_checked() -> None:
    config: dict[str, Any] = yaml.safe_load((ROOT / "deployments/multi-node.yaml").read_text())
    config["applications"][0]["autoscaling_policy"]["policy_kwargs"] = {"smoothing": 3}
    with pytest.raises(ConfigError, match="smoothing"):
        kube_config(config)


@pytest.mark.parametrize("text", ["", "- a list", "a: [", "args: 5"])
def test_a_file_that_is_no_serve_config_ends_with_a_message(text: str, tmp_path: Path) -> None:
    (tmp_path / "config.yaml").write_text(text)
    with pytest.raises(SystemExit, match="error: "):
        main([str(tmp_path / "config.yaml")])


def test_a_file_that_is_not_there_ends_with_a_message(tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match=r"error: cannot read .*none\.yaml"):
        main([str(tmp_path / "none.yaml")])
    with pytest.raises(SystemExit, match="usage: "):
        main([])

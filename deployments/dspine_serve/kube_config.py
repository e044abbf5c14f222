"""The `serveConfigV2` of a RayService from a Serve config file: the same application behind a pod's address.

python -m dspine_serve.kube_config deployments/multi-node.yaml > k8s/overlays/gpu-multi-node/serve-config.yaml
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml
from pydantic import ValidationError
from ray.serve.schema import ServeDeploySchema

from dspine_cluster.errors import ConfigError
from dspine_serve.args import AppArgs
from dspine_serve.scaling_config import merged_settings

PORT = 8000
"""Of HTTP: what pods, services and network policies in k8s/ open."""
_HEADER = "# Made by `python -m dspine_serve.kube_config {source}`; change that file.\n"


def kube_config(config: dict[str, Any]) -> dict[str, Any]:
    """What a Serve config file says, for Kubernetes: every pod listens on its address, behind the service.

    Raises:
        pydantic.ValidationError: an argument is unknown, or a value is refused, by Serve or by the application.
        ConfigError: it serves on another port than pods open, or the policy's settings are none.
    """
    changed = config | {
        "proxy_location": "EveryNode",
        "http_options": (config.get("http_options") or {}) | {"host": "0.0.0.0"},
    }
    parsed = ServeDeploySchema.model_validate(changed)
    if parsed.http_options.port != PORT:
        raise ConfigError(f"http_options.port must be {PORT}, which the pods of k8s/ open")
    for application in parsed.applications:
        AppArgs.model_validate(application.args)
        policy = application.autoscaling_policy or {}
        merged_settings({}, policy.get("policy_kwargs") or {})
    return changed


def make_patch(source: Path) -> str:
    """A kustomize patch that gives the RayService the application of `source`.

    Raises:
        ConfigError: it cannot be read.
        pydantic.ValidationError, ConfigError: as `kube_config`.
    """
    config = kube_config(_read(source))
    text = yaml.safe_dump(config, sort_keys=False)
    indented = "".join(f"    {line}\n" for line in text.splitlines())
    return (
        _HEADER.format(source=source)
        + "apiVersion: ray.io/v1\nkind: RayService\nmetadata:\n  name: dspine\nspec:\n  serveConfigV2: |\n"
        + indented
    )


def _read(source: Path) -> dict[str, Any]:
    try:
        config = yaml.safe_load(source.read_text(encoding="utf-8"))
    except (OSError, ValueError, yaml.YAMLError) as error:
        raise ConfigError(f"cannot read {source}: {error}") from error
    if not isinstance(config, dict):
        raise ConfigError(f"{source} must be a Serve config file, as those in deployments/")
    return config


def main(arguments: Sequence[str]) -> None:
    """Print the patch for the one file that is named; ends with a message where it cannot be made."""
    if len(arguments) != 1:
        sys.exit("usage: python -m dspine_serve.kube_config SERVE_CONFIG.yaml")
    try:
        print(make_patch(Path(arguments[0])), end="")
    except (ConfigError, ValidationError) as error:
        sys.exit(f"error: {error}")


if __name__ == "__main__":
    main(sys.argv[1:])

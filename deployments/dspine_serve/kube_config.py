"""The `serveConfigV2` of a RayService from a Serve config file: the same application behind a pod's address.

python -m dspine_serve.kube_config deployments/multi-node.yaml > k8s/overlays/gpu-multi-node/serve-config.yaml
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import yaml
from ray.serve.schema import ServeDeploySchema

from dspine_serve.args import AppArgs

_HEADER = "# Made by `python -m dspine_serve.kube_config {source}`; change that file.\n"


def kube_config(config: dict[str, Any]) -> dict[str, Any]:
    """What a Serve config file says, for Kubernetes: every pod listens on its address, behind the service.

    Raises:
        pydantic.ValidationError: an argument is unknown, or a value is refused, by Serve or by the application.
    """
    changed = config | {
        "proxy_location": "EveryNode",
        "http_options": config.get("http_options", {}) | {"host": "0.0.0.0"},
    }
    for application in ServeDeploySchema.model_validate(changed).applications:
        AppArgs.model_validate(application.args)
    return changed


def make_patch(source: Path) -> str:
    """A kustomize patch that gives the RayService the application of `source`."""
    config = kube_config(yaml.safe_load(source.read_text()))
    text = yaml.safe_dump(config, sort_keys=False)
    indented = "".join(f"    {line}\n" for line in text.splitlines())
    return (
        _HEADER.format(source=source)
        + "apiVersion: ray.io/v1\nkind: RayService\nmetadata:\n  name: dspine\nspec:\n  serveConfigV2: |\n"
        + indented
    )


if __name__ == "__main__":
    print(make_patch(Path(sys.argv[1])), end="")

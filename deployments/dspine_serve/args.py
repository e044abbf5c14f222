"""The arguments of the application, as `args` of a Serve config file gives them. Unknown keys are refused."""

from __future__ import annotations

from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, SecretStr, model_validator

from dspine_cluster.api.http_config import HttpConfig
from dspine_cluster.config import DraftingConfig, EngineConfig, ModelSource, TracingConfig
from dspine_cluster.core.autoscaling_config import AutoscalingConfig
from dspine_cluster.core.placement_score import PlacementConfig

MAX_ONGOING_REQUESTS = 256
"""Calls that a replica takes at a time."""
INGRESS_MAX_ONGOING_REQUESTS = 8192
"""More than an ingress admits: it refuses what is too much by itself, and health checks never wait for a slot."""


def _source(value: Any) -> Any:
    return {"name": value} if isinstance(value, str) else value


Source = Annotated[ModelSource, BeforeValidator(_source)]
"""`name`, or `{name: ..., revision: ...}`."""


class _Args(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True)


class ReplicaArgs(_Args):
    """Replicas of one deployment and what Ray reserves for each."""

    num_replicas: Annotated[int, Field(ge=1)] = 1
    """How many run."""
    num_cpus: Annotated[float, Field(ge=0)] = 0.1
    """What Ray reserves for each replica."""
    num_gpus: Annotated[float, Field(ge=0)] = 0
    """What Ray reserves for each replica; a part of one shares it."""
    resources: dict[str, float] = {}
    """Custom resources of nodes, such as `dspine_drafter: 1`."""

    def reserved(self, num_ranks: int = 1) -> dict[str, float]:
        """What Ray reserves for a replica of so many ranks, by Ray's names."""
        return {"CPU": self.num_cpus * num_ranks, "GPU": self.num_gpus * num_ranks, **self.resources}


class DirectoryArgs(ReplicaArgs):
    num_replicas: Literal[1] = 1
    """There is one."""
    num_cpus: Annotated[float, Field(ge=0)] = 0
    """What Ray reserves for it."""


class IngressArgs(ReplicaArgs):
    max_body_bytes: Annotated[int, Field(ge=1024)] = 8 * 2**20
    """Larger bodies are refused."""
    max_choices: Annotated[int, Field(ge=1)] = 64
    """Completions one request may ask for: prompts times `n`."""


class ScaledArgs(ReplicaArgs):
    autoscaled: bool = False
    """Have `autoscaling` choose how many run; `num_replicas` is how many start."""


class VerifierArgs(ScaledArgs):
    num_cpus: Annotated[float, Field(ge=0)] = 0.5
    """What Ray reserves for each rank of each replica."""
    num_gpus: Annotated[float, Field(ge=0)] = 0
    """What Ray reserves for each rank of each replica; a part of one shares it, where there is one rank."""


class DrafterArgs(ScaledArgs):
    num_cpus: Annotated[float, Field(ge=0)] = 0.25
    """What Ray reserves for each replica."""
    device: str = "cpu"
    """Where drafters compute: `cpu` or `cuda`."""
    max_context_tokens: Annotated[int, Field(ge=16)] | None = None
    """Context that a request uses at most; None takes the engine's `max_model_len_tokens`."""
    pool_tokens: Annotated[int, Field(ge=16)] | None = None
    """Context tokens that the page pool holds; None sizes it from `memory_fraction` of the free memory."""
    memory_fraction: Annotated[float, Field(gt=0, le=1)] = 0.1
    """Share of the free memory, measured after the weights are loaded, for pages."""
    socket_folder: str | None = None
    """Folder of the Unix sockets, mode 0700; None makes one per user in the folder for temporary files."""
    listens_on_tcp: bool = False
    """Also listen on the node's address, so that verifiers of other nodes can use this drafter."""


class AppArgs(_Args):
    """Everything that the application can be told. The defaults serve the miniature on two cores."""

    model_name: str | None = None
    """The name that clients use; None takes the target's."""
    target: Source = ModelSource("miniature")
    """A folder, `{name: owner/model, revision: <40 hex digits>}` of the Hub, or a built-in name."""
    drafter: Source = ModelSource("miniature-dspine")
    """The same; `none` decodes plainly and starts no drafters."""
    engine: EngineConfig = EngineConfig()
    drafting: DraftingConfig = DraftingConfig()
    secret: Annotated[SecretStr, Field(min_length=16)] | None = None
    """What verifiers and drafters prove to each other that they know. None makes one with each deployment: during an
    update old and new ones then do not pair, and decode plainly where they have no others."""
    drain_timeout_s: Annotated[float, Field(gt=0)] = 600.0
    """How long what has begun may go on when the application, or a replica of it, is to stop; then it is cut off."""
    http: HttpConfig = HttpConfig()
    tracing: TracingConfig = TracingConfig()
    directory: DirectoryArgs = DirectoryArgs()
    ingresses: IngressArgs = IngressArgs()
    verifiers: VerifierArgs = VerifierArgs()
    drafters: DrafterArgs = DrafterArgs()
    placement: PlacementConfig = PlacementConfig()
    autoscaling: AutoscalingConfig = AutoscalingConfig()

    @model_validator(mode="after")
    def _check_numbers(self) -> AppArgs:
        """Where autoscaling chooses, it begins within its bounds, and never takes the last verifier: nothing would
        start one again."""
        for name, args, limits in (
            ("verifiers", self.verifiers, self.autoscaling.verifiers),
            ("drafters", self.drafters, self.autoscaling.drafters),
        ):
            if args.autoscaled and not limits.min_replicas <= args.num_replicas <= limits.max_replicas:
                raise ValueError(
                    f"{name}.num_replicas must be in autoscaling.{name}.min_replicas to max_replicas"
                )
        if self.verifiers.autoscaled and self.autoscaling.verifiers.min_replicas == 0:
            raise ValueError("autoscaling.verifiers.min_replicas must be at least 1")
        return self

    @model_validator(mode="after")
    def _check_ranks(self) -> Self:
        if self.engine.tensor_parallel > 1 and self.engine.device == "cuda" and self.verifiers.num_gpus != 1:
            raise ValueError(
                "every rank of engine.tensor_parallel needs a GPU of its own: set verifiers.num_gpus to 1"
            )
        return self

    @property
    def served_name(self) -> str:
        return self.model_name or self.target.name

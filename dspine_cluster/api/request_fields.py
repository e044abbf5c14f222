"""What the bodies that clients send are made of.

Types are strict: `"1"` is no number and `true` is no integer. Unknown fields are kept in `model_extra`, where
`unsupported.check_extra_fields` refuses or logs them.
"""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field
from pydantic_core import PydanticCustomError

_MAX_LOGIT_BIAS = 1024


def _few_entries(value: Any) -> Any:
    """Every wrong entry would be an error of its own: too many are refused before they are looked at."""
    if isinstance(value, dict) and len(value) > _MAX_LOGIT_BIAS:
        raise PydanticCustomError("too_long", f"at most {_MAX_LOGIT_BIAS} entries are allowed")
    return value


Int64 = Annotated[int, Field(ge=-(2**63), le=2**63 - 1)]
TokenId = Annotated[int, Field(ge=0)]
# `fail_fast`: a long list of wrong items is one error, not millions.
TokenIds = Annotated[list[TokenId], Field(fail_fast=True)]
Texts = Annotated[list[str], Field(fail_fast=True)]
FunctionName = Annotated[str, Field(min_length=1, max_length=256)]
NumTopLogprobs = Annotated[int, Field(ge=0, le=20)]
LogitBias = Annotated[dict[str, Annotated[float, Field(ge=-100, le=100)]], BeforeValidator(_few_entries)]
Prompts = str | Texts | TokenIds | Annotated[list[TokenIds], Field(fail_fast=True)]


class RequestModel(BaseModel):
    model_config = ConfigDict(strict=True, extra="allow", allow_inf_nan=False, frozen=True)


def type_tag(value: Any, default: str | None = None) -> str:
    """Which model of a union `value` is for. What tells of errors leaves tags out, as they are no names of fields."""
    kind = value.get("type", default) if isinstance(value, dict) else getattr(value, "type", default)
    return f"type={kind}"

"""How a request asks to be sampled. The names are the proto's, and vLLM's where it has the same thing."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from draftline.kernels.limits import MAX_LOGIT_BIAS

MAX_LOGPROBS = 20
"""The most likely tokens that logprobs can list at one position."""

MAX_N = 64
"""The most outputs of one request."""

UINT32_MAX = 2**32 - 1

TokenId = Annotated[int, Field(ge=0, le=UINT32_MAX)]


class _Params(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


class SamplingParams(_Params):
    """How the tokens of one request are chosen and when it ends.

    The processing order is: penalties, logit bias, min_tokens, temperature, top_k, top_p, min_p; then one draw keyed by
    seed, position and token, so that a seed gives the same tokens whatever else is in the batch.
    """

    temperature: float = Field(default=1.0, ge=0.0, le=100.0, description="0 is greedy; 1 is the model's distribution")
    top_p: float = Field(default=1.0, gt=0.0, le=1.0, description="keep the smallest set of tokens with this mass")
    top_k: int = Field(default=0, ge=0, le=2**31 - 1, description="keep the k most likely tokens; 0 keeps all")
    min_p: float = Field(default=0.0, ge=0.0, le=1.0, description="drop tokens below this share of the top token's")
    repetition_penalty: float = Field(
        default=1.0, gt=0.0, le=100.0, description="divides (or multiplies) logits of tokens seen in prompt or output"
    )
    presence_penalty: float = Field(
        default=0.0, ge=-2.0, le=2.0, description="subtracted once for a token in the output"
    )
    frequency_penalty: float = Field(default=0.0, ge=-2.0, le=2.0, description="subtracted for each use in the output")
    seed: int | None = Field(
        default=None, ge=-(2**63), le=2**64 - 1, description="the draw's seed; random where unset, and reported back"
    )
    max_tokens: int | None = Field(
        default=None, ge=1, le=2**31 - 1, description="most output tokens; 256 or what the context leaves where unset"
    )
    min_tokens: int = Field(default=0, ge=0, le=2**31 - 1, description="no stop id can be sampled before this many")
    stop: tuple[Annotated[str, Field(min_length=1, max_length=1024)], ...] = Field(
        default=(), max_length=64, description="texts that end the output; never part of it"
    )
    stop_token_ids: tuple[TokenId, ...] = Field(default=(), max_length=64, description="token ids that end the output")
    ignore_eos: bool = Field(default=False, description="go on after end-of-sequence")
    logit_bias: dict[TokenId, Annotated[float, Field(ge=-1000.0, le=1000.0)]] = Field(
        default_factory=dict, max_length=MAX_LOGIT_BIAS, description="added to a token's logit"
    )
    logprobs: int | None = Field(
        default=None, ge=0, le=MAX_LOGPROBS, description="log-probability of each output token and of this many best"
    )
    prompt_logprobs: int | None = Field(
        default=None, ge=0, le=MAX_LOGPROBS, description="the same for the prompt's tokens after the first"
    )
    n: int = Field(default=1, ge=1, le=MAX_N, description="independent outputs of the prompt, seeded seed, seed + 1, …")

    @field_validator("stop", mode="before")
    @classmethod
    def _one_stop_is_a_list_of_one(cls, value: object) -> object:
        return (value,) if isinstance(value, str) else value

    @model_validator(mode="after")
    def _min_tokens_within_max_tokens(self) -> SamplingParams:
        if self.max_tokens is not None and self.min_tokens > self.max_tokens:
            raise ValueError(f"min_tokens ({self.min_tokens}) exceeds max_tokens ({self.max_tokens})")
        return self


class Speculation(_Params):
    """Whether and how far one request is drafted ahead. It changes the speed, never the output."""

    enabled: bool | None = Field(default=None, description="off, or on; the server's choice where unset")
    draft_tokens: int | None = Field(default=None, ge=0, le=16, description="most drafted tokens a step")


class Constraint(_Params):
    """What the output must match. Set exactly one of the first five."""

    json_schema: str | None = Field(default=None, description="a JSON Schema, as JSON text")
    regex: str | None = Field(default=None, description="a regular expression over the whole output")
    choice: tuple[str, ...] | None = Field(default=None, description="one of these texts")
    json_object: bool = Field(default=False, description="any JSON object")
    grammar: str | None = Field(default=None, description="a Lark grammar")
    whitespace: Literal["compact", "spaced", "free"] = Field(default="free", description="white space between tokens")
    best_effort: bool = Field(default=False, description="accept keywords that cannot be enforced, and report them")
    close_within_budget: bool = Field(default=False, description="finish the document within max_tokens")

    @model_validator(mode="after")
    def _exactly_one_kind(self) -> Constraint:
        kinds = [self.json_schema, self.regex, self.choice, self.json_object or None, self.grammar]
        if sum(kind is not None for kind in kinds) != 1:
            raise ValueError("set exactly one of json_schema, regex, choice, json_object and grammar")
        return self

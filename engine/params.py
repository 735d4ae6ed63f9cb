"""How a request asks to be sampled. The names are the proto's, and vLLM's where it has the same thing."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any, Generic, Literal, TypedDict

from pydantic import ConfigDict, Field, PrivateAttr, field_validator, model_validator
from pydantic_core import to_jsonable_python
from typing_extensions import TypeVar, override

from draftline.engine.chat.calls import Tool, ToolChoice
from draftline.engine.errors import no_unicode
from draftline.engine.options import FieldsError, Options
from draftline.engine.vllm_names import SAMPLING_FOREIGN
from draftline.kernels.limits import MAX_LOGIT_BIAS

if TYPE_CHECKING:
    from draftline.structured.types.typed_schema import TypedSchema

DEFAULT_MAX_TOKENS = 256
"""Max output tokens of a request without ``max_tokens``, as far as the context has room."""

MAX_LOGPROBS = 20
"""Max tokens listed per position."""

MAX_N = 64
"""Max outputs per request."""

UINT32_MAX = 2**32 - 1

T = TypeVar("T", default=Any)
"""The type that a constraint's texts stand for. ``Any`` for a constraint without a type."""

_Other = TypeVar("_Other")

TokenId = Annotated[int, Field(ge=0, le=UINT32_MAX)]

# Callers may pass any sequence; the model stores a tuple. Type checkers see one type for both, the wider one.
if TYPE_CHECKING:
    _StopTexts = Sequence[str]
    _TokenIds = Sequence[int]
    _Words = Sequence[str]
    _Texts = Sequence[str]
    _Json = Any  # callers may pass a dict, too; the model stores text
else:
    _StopTexts = tuple[Annotated[str, Field(min_length=1, max_length=1024)], ...]
    _TokenIds = tuple[TokenId, ...]
    _Words = tuple[Annotated[str, Field(min_length=1, max_length=256)], ...]
    _Texts = tuple[str, ...]
    _Json = str


class _Params(Options):
    model_config = ConfigDict(allow_inf_nan=False)


class SamplingParams(_Params):
    """How the tokens of one request are chosen, and when it ends.

    The logits are processed in this order: penalties, logit bias, min_tokens, bad_words, allowed_token_ids,
    temperature, top_k, top_p, min_p. One draw follows, keyed by seed, position and token. A seed gives the same tokens
    whatever else is in the batch. A constraint weighs more than min_tokens, bad_words and allowed_token_ids: where
    these leave none of its tokens, one of its tokens is sampled all the same.

    vLLM's ``stop="text"``, ``stop=None``, ``bad_words=None`` and ``top_k=-1`` are accepted.
    """

    foreign = SAMPLING_FOREIGN

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
        default=None,
        ge=1,
        le=2**31 - 1,
        description=f"max output tokens; {DEFAULT_MAX_TOKENS} where unset. The end of the context ends the output too",
    )
    min_tokens: int = Field(
        default=0, ge=0, le=2**31 - 1, description="output tokens before a stop id or end-of-sequence can be sampled"
    )
    stop: _StopTexts = Field(default=(), max_length=64, description="texts that end the output; never part of it")
    stop_token_ids: _TokenIds = Field(default=(), max_length=64, description="token ids that end the output")
    ignore_eos: bool = Field(default=False, description="continue after end-of-sequence")
    logit_bias: dict[TokenId, Annotated[float, Field(ge=-1000.0, le=1000.0)]] = Field(
        default_factory=dict, max_length=MAX_LOGIT_BIAS, description="added to a token's logit"
    )
    bad_words: _Words = Field(
        default=(),
        max_length=512,
        description="texts that are not written, with or without a space before them, as the tokenizer splits them",
    )
    allowed_token_ids: _TokenIds | None = Field(
        default=None, min_length=1, description="only these token ids can be sampled; all where unset"
    )
    logprobs: int | None = Field(
        default=None,
        ge=0,
        le=MAX_LOGPROBS,
        description="report the log-probability of each output token, and of this many most likely ones",
    )
    prompt_logprobs: int | None = Field(
        default=None, ge=0, le=MAX_LOGPROBS, description="the same for the prompt's tokens after the first"
    )
    truncate_prompt_tokens: int | None = Field(
        default=None,
        ge=-1,
        le=2**31 - 1,
        description="keep this many of the prompt's last tokens; -1 keeps as many as fit",
    )
    n: int = Field(
        default=1, ge=1, le=MAX_N, description="independent outputs of the prompt, with the seeds seed, seed + 1, …"
    )

    @field_validator("stop", mode="before")
    @classmethod
    def _stop_as_a_sequence(cls, value: object) -> object:
        if value is None:
            return ()
        return (value,) if isinstance(value, str) else value

    @field_validator("bad_words", mode="before")
    @classmethod
    def _none_is_bad(cls, value: object) -> object:
        return () if value is None else value

    @field_validator("truncate_prompt_tokens")
    @classmethod
    def _some_of_the_prompt(cls, value: int | None) -> int | None:
        if value == 0:
            raise ValueError("must be at least 1, or -1")
        return value

    @field_validator("top_k", mode="before")
    @classmethod
    def _minus_one_keeps_all(cls, value: object) -> object:
        return 0 if value == -1 else value

    @model_validator(mode="after")
    def _min_tokens_within_max_tokens(self) -> SamplingParams:
        if self.max_tokens is not None and self.min_tokens > self.max_tokens:
            problem = f"min_tokens ({self.min_tokens}) exceeds max_tokens ({self.max_tokens})"
            raise FieldsError(problem, "min_tokens", "max_tokens")
        return self


class Speculation(_Params):
    """Whether one request uses speculative decoding, and how far. It changes the speed, never the output."""

    enabled: bool | None = Field(default=None, description="off, or on; the engine's choice where unset")
    draft_tokens: int | None = Field(
        default=None, ge=0, le=16, description="max draft tokens per step; the engine's draft_tokens where unset"
    )

    @model_validator(mode="after")
    def _drafts_where_it_drafts(self) -> Speculation:
        if self.enabled is False and self.draft_tokens:
            raise FieldsError(f"{self.draft_tokens} has no effect where speculation is off", "draft_tokens")
        return self


class Reasoning(_Params):
    """Free text between two marks, before the constrained text.

    The constraint begins behind the end mark. Reasoning that reaches its limit is ended by the mark, and the answer
    follows.
    """

    begin: str = Field(
        default="<think>",
        max_length=256,
        description="mark before the reasoning; empty where the prompt has it already, as many chat templates do",
    )
    end: str = Field(default="</think>", min_length=1, max_length=256, description="mark behind the reasoning")
    required: bool = Field(default=True, description="the output must begin with reasoning")
    max_tokens: int | None = Field(
        default=None, ge=1, le=2**31 - 1, description="max tokens of the reasoning with its marks"
    )


CONSTRAINT_KINDS = ("json_schema", "regex", "choice", "json_object", "grammar", "structural_tag")
"""The options of a `Constraint` of which it has at most one."""


Whitespace = Literal["compact", "spaced", "free"]
Integers = Literal["plain", "standard"]
MemberOrder = Literal["schema", "any"]


class Constraint(_Params, Generic[T]):
    """A constraint on the whole output. Set one of the options before ``whitespace``; with reasoning, none is needed.

    A constraint that `Schema` makes of a type remembers the type, in this process only: neither pickles nor messages
    carry it.
    """

    json_schema: _Json | None = Field(default=None, description="a JSON Schema, as JSON")
    regex: str | None = Field(default=None, description="a regular expression over the whole output")
    choice: _Texts | None = Field(default=None, description="one of these texts")
    json_object: bool = Field(default=False, description="any JSON object")
    grammar: str | None = Field(default=None, description="a grammar in Lark or EBNF")
    structural_tag: _Json | None = Field(
        default=None, description="free text with constrained tags, in XGrammar's JSON"
    )
    whitespace: Whitespace = Field(default="free", description="white space between the tokens of JSON")
    best_effort: bool = Field(default=False, description="accept keywords that cannot be enforced, and report them")
    close_within_budget: bool = Field(default=False, description="finish the document within max_tokens")
    integers: Integers = Field(
        default="plain",
        description="texts of a schema's integers: digits alone, or also 1.0 and 1e16 as the standard has it",
    )
    member_order: MemberOrder = Field(
        default="schema", description="order of an object's members: the schema's wherever possible, or any"
    )
    close_objects: bool = Field(
        default=False, description="leave out members that a schema does not mention, where it does not allow others"
    )

    reasoning: Reasoning | None = Field(default=None, description="free text between two marks before the constraint")

    _typed: TypedSchema[T] | None = PrivateAttr(default=None)

    @property
    def kind(self) -> str | None:
        """The one of `CONSTRAINT_KINDS` that is set; None if there is only reasoning."""
        return next(iter(self._kinds()), None)

    @property
    def output_type(self) -> Any:
        """The type whose schema this is; None for a constraint that was not made of a type."""
        return None if self._typed is None else self._typed.type

    @property
    def typed(self) -> TypedSchema[T] | None:
        """The type with its parser and its validators that are not enforced; None without a type."""
        return self._typed

    @property
    def is_json(self) -> bool:
        """Whether every text is a JSON document, without the reasoning before it."""
        return self.json_object or self.json_schema is not None

    def of_type(self, typed: TypedSchema[_Other]) -> Constraint[_Other]:
        """Return the same constraint, which remembers the type of its texts."""
        constraint: Constraint[Any] = self.model_copy()
        constraint._typed = typed
        return constraint

    def parse(self, text: str) -> T:
        """Read a text that the constraint allows, without the reasoning before it.

        Returns:
            A value of the constraint's type. Without a type: what ``json.loads`` gives for JSON, and otherwise the
            text.

        Raises:
            ValueError: a validator that is written in Python rejects the value. It is the error of the type's library.
        """
        if self._typed is not None:
            return self._typed.parse(text)
        value: Any = json.loads(text) if self.is_json else text
        return value  # type: ignore[no-any-return]

    def dump(self, value: T) -> str:
        """Write a value as the constraint's texts have it: the inverse of `parse`.

        Raises:
            ValueError: it is no value of the constraint's type, is written as another one, or is none of the choices.
        """
        if not self.is_json:
            if self.choice is not None and value not in self.choice:
                raise ValueError(f"{value!r} is none of the choices")
            return str(value)
        plain = to_jsonable_python(value, by_alias=True) if self._typed is None else self._typed.plain(value)
        return json.dumps(
            plain, ensure_ascii=False, allow_nan=False, separators=(",", ":") if self.whitespace == "compact" else None
        )

    @override
    def __getstate__(self) -> dict[Any, Any]:
        # Another process may not be able to import the type, and needs the schema alone.
        return {**super().__getstate__(), "__pydantic_private__": {"_typed": None}}

    @field_validator("json_schema", "structural_tag", mode="before")
    @classmethod
    def _as_text(cls, value: object) -> object:
        if not isinstance(value, dict):
            return value
        try:
            return json.dumps(value, ensure_ascii=False)
        except TypeError as error:
            raise ValueError(f"is no JSON: {error}") from error

    @field_validator(*CONSTRAINT_KINDS)
    @classmethod
    def _no_surrogates(cls, value: str | tuple[str, ...] | bool | None) -> object:
        for text in value if isinstance(value, tuple) else [value] if isinstance(value, str) else []:
            if (problem := no_unicode(text)) is not None:
                raise ValueError(problem)
        return value

    @model_validator(mode="after")
    def _exactly_one_kind(self) -> Constraint[T]:
        count = len(self._kinds())
        if count > 1 or (not count and self.reasoning is None):
            *most, last = CONSTRAINT_KINDS
            raise ValueError(f"set exactly one of {', '.join(most)} and {last}, or only reasoning")
        return self

    def _kinds(self) -> list[str]:
        return [kind for kind in CONSTRAINT_KINDS if getattr(self, kind) not in (None, False)]


class RequestOptions(TypedDict, total=False):
    """The options of a request besides its sampling and its constraint: keywords of every verb."""

    speculation: Speculation | None
    """How the request uses speculative decoding."""

    priority: int
    """Higher runs first; 0 by default."""

    timeout: float | None
    """Seconds from the submission to the end; past them the request fails with `DeadlineExceededError`."""


class ChatOptions(RequestOptions, total=False):
    """The options of a chat: keywords of ``chat``."""

    tools: Iterable[Tool | Mapping[str, Any]] | None
    """The functions that the model may call: `Tool`, or mappings in OpenAI's form."""

    tool_choice: ToolChoice | str | Mapping[str, Any] | None
    """"auto" (the default), "none", "required", or OpenAI's mapping that names a function."""

    parallel_tool_calls: bool | None
    """Whether an output may make several calls, of chats with tools; true by default."""

    max_reasoning_tokens: int | None
    """The reasoning of a reasoning model ends within this many tokens, its marks included."""

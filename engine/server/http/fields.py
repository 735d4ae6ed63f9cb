"""The fields of HTTP requests in one table: the engine's own, those without effect, and those that are refused.

A field that would change the output and is not honoured is refused by its name. One that cannot change it is accepted.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from draftline.engine.errors import FieldViolation, InvalidRequestError
from draftline.engine.options import suggestion
from draftline.engine.params import SamplingParams

SAMPLING: Mapping[str, str] = {
    **{name: name for name in SamplingParams.model_fields if name != "logprobs"},
    **dict.fromkeys(("max_completion_tokens", "max_output_tokens", "max_new_tokens"), "max_tokens"),
}
"""The fields of a body that `SamplingParams` has, under its names there. Bounds are those of `SamplingParams`.

Endpoints give ``logprobs`` meanings of their own.
"""


@dataclass(frozen=True, slots=True)
class Inert:
    """A field without effect.

    Attributes:
        values: those that are accepted, besides null; None for any.
        why: the reason why others are refused, or why none has to be.
    """

    values: tuple[object, ...] | None
    why: str


_ANY = None
_TOOLS = "only chats and responses call tools"
STORE = "this server stores nothing"
BY_TEMPLATE = "the chat template has the special tokens"
_GUIDED = "use structured_outputs or response_format"
_CACHED = Inert(_ANY, "prefixes are cached while there is room")

INERT: Mapping[str, Inert] = {
    # Labels: they cannot change the output.
    "user": Inert(_ANY, "a label"),
    "metadata": Inert(_ANY, "a label"),
    "safety_identifier": Inert(_ANY, "a label"),
    "prompt_cache_key": Inert(_ANY, "prefixes are cached without a key"),
    "prompt_cache_options": _CACHED,
    "prompt_cache_retention": _CACHED,
    "prediction": Inert(_ANY, "a hint for speed"),
    "request_id": Inert(_ANY, "a label; the header x-request-id appears in logs"),
    # Values that ask for nothing, as clients send them.
    "store": Inert((False,), STORE),
    "service_tier": Inert(("auto", "default"), "there is one tier; use priority"),
    "tools": Inert(([],), _TOOLS),
    "tool_choice": Inert(("none", "auto"), _TOOLS),
    "parallel_tool_calls": Inert((True, False), _TOOLS),
    "functions": Inert(([],), "use tools"),
    "function_call": Inert(("none", "auto"), "use tool_choice"),
    "modalities": Inert((["text"],), "the model writes text"),
    "audio": Inert((), "the model writes text"),
    "image": Inert((), "the model writes text"),
    "access_programs": Inert((), "this server has none"),
    "reasoning_effort": Inert((), "use max_reasoning_tokens, or chat_template_kwargs"),
    "reasoning": Inert(({},), "use max_reasoning_tokens, or chat_template_kwargs"),
    "include_reasoning": Inert((True,), "reasoning is a field of its own"),
    "verbosity": Inert((), "the model has no such control"),
    "web_search_options": Inert((), "this server searches nothing"),
    "moderation": Inert((), "this server moderates nothing"),
    "background": Inert((False,), STORE),
    "background_options": Inert((), STORE),
    "previous_response_id": Inert((), f"{STORE}; send the whole conversation as input"),
    "conversation": Inert((), f"{STORE}; send the whole conversation as input"),
    "prompt": Inert((), f"{STORE}, templates included"),
    "truncation": Inert(("disabled",), "use truncate_prompt_tokens"),
    "max_tool_calls": Inert(_ANY, "the client makes the calls"),
    "context_management": Inert((), "this server compacts nothing"),
    "suffix": Inert(("",), "this server inserts no text"),
    "best_of": Inert((1,), "set n, and choose among the outputs"),
    # vLLM's.
    "use_beam_search": Inert((False,), "there is no beam search"),
    "length_penalty": Inert((1, 1.0), "there is no beam search"),
    "early_stopping": Inert((False,), "there is no beam search"),
    "include_stop_str_in_output": Inert((False,), "a stop string is never part of the output"),
    "skip_special_tokens": Inert((True,), "special tokens have no text"),
    "spaces_between_special_tokens": Inert((True, False), "special tokens have no text"),
    "detokenize": Inert((True,), "the answer has text"),
    "add_special_tokens": Inert((False,), BY_TEMPLATE),
    "return_token_ids": Inert((False,), "log-probabilities have the tokens"),
    "return_tokens_as_token_ids": Inert((False,), "tokens are listed as text"),
    "logits_processors": Inert(([],), "this server runs no code of clients"),
    "thinking_token_budget": Inert((), "use max_reasoning_tokens"),
    "chat_template": Inert((), "the server's operator chooses it: --chat-template"),
    "documents": Inert(([],), "put them into the messages"),
    "echo": Inert((False,), "only /v1/completions echoes"),
    "mm_processor_kwargs": Inert(({},), "the model reads text"),
    "cache_salt": Inert((), "all clients share the prefix cache"),
    "kv_transfer_params": Inert((), "this server transfers no caches"),
    "vllm_xargs": Inert(({},), "this server has no extensions"),
    "guided_json": Inert((), _GUIDED),
    "guided_regex": Inert((), _GUIDED),
    "guided_choice": Inert((), _GUIDED),
    "guided_grammar": Inert((), _GUIDED),
    "guided_decoding_backend": Inert((), _GUIDED),
    "guided_whitespace_pattern": Inert((), _GUIDED),
    "structural_tag": Inert((), "use structured_outputs"),
    # SGLang's.
    "regex": Inert((), _GUIDED),
    "ebnf": Inert((), "use structured_outputs with a grammar"),
}
"""Known fields that no endpoint honours, unless its own body has them. An endpoint's body takes precedence."""

INERT_IN_MESSAGE: Mapping[str, Inert] = {
    "refusal": Inert((), "a message has content"),
    "audio": Inert((), "the model reads text"),
    "annotations": Inert(([],), "a message has text alone"),
    "function_call": Inert((), "use tool_calls"),
    "parsed": Inert(_ANY, "the content says the same"),
    "provider_specific_fields": Inert(_ANY, "LiteLLM's copies of the message's fields"),
    "cache_control": _CACHED,
}
"""The same for chat messages, as clients send back those that they got."""

INERT_IN_CALL: Mapping[str, Inert] = {
    "index": Inert(_ANY, "the order of the calls says it"),
    "parsed_arguments": Inert(_ANY, "the arguments say the same"),
}
"""The same for a call in a message."""

INERT_IN_TOOL: Mapping[str, Inert] = {"cache_control": _CACHED}
"""The same for a tool of a chat, and for its function."""

INERT_IN_FUNCTION: Mapping[str, Inert] = {
    **INERT_IN_TOOL,
    "defer_loading": Inert((False,), "the prompt shows all tools"),
    "allowed_callers": Inert((["direct"],), "the model makes its calls directly"),
    "async": Inert((False,), "the client makes the calls"),
    "output_schema": Inert((), "chats do not show it; write it into the description"),
}
"""The same for a function that a response may call."""

INERT_IN_PART: Mapping[str, Inert] = {
    "parsed": Inert(_ANY, "the text says the same"),
    "prompt_cache_breakpoint": _CACHED,
    "cache_control": _CACHED,
    **{
        name: Inert((), "the model reads text")
        for name in ("image_url", "input_audio", "audio_url", "video_url", "file", "file_id", "file_data", "file_url")
    },
}
"""The same for a part of a message."""

INERT_IN_CONSTRAINT: Mapping[str, Inert] = {
    "whitespace_pattern": Inert((), "use whitespace: compact, spaced or free"),
    "disable_any_whitespace": Inert((False,), "use whitespace: compact"),
    "disable_fallback": Inert((True, False), "there is one backend for each kind"),
    "disable_additional_properties": Inert((False,), "write additionalProperties: false into the schema"),
}
"""The same for ``structured_outputs``."""

_SHOWN = 64
"""Characters of an unknown name that an error quotes."""


def refused(values: Mapping[str, object], inert: Mapping[str, Inert], known: Iterable[str]) -> Iterator[FieldViolation]:
    """A violation for each field that is unknown, or whose effect is not supported.

    Args:
        values: the fields that no model reads.
        inert: the known fields among them.
        known: the names that a misspelt one may mean.
    """
    for name, value in values.items():
        if value is None:  # unset
            continue
        entry = inert.get(name)
        if entry is None:
            shown = name[:_SHOWN]
            yield FieldViolation(shown, f"is not a field here{suggestion(shown, known)}")
        elif entry.values is not None and not _among(_without_null(value), entry.values):
            yield FieldViolation(name, f"is not supported: {entry.why}")


def _without_null(value: object) -> object:
    """A JSON value without the members of an object that are unset."""
    return {name: each for name, each in value.items() if each is not None} if isinstance(value, dict) else value


def _among(value: object, values: Sequence[object]) -> bool:
    """Whether a JSON value is one of ``values``. ``True`` is not 1."""
    return any(type(value) is type(each) and value == each for each in values)


@dataclass(frozen=True, slots=True)
class Names:
    """The names of a body's fields, by the engine's paths. Errors of the engine are told by them.

    Attributes:
        paths: pairs of an engine's path and the body's; the first that begins a violation's field replaces it.
    """

    paths: tuple[tuple[str, str], ...]

    def error(self, error: InvalidRequestError) -> InvalidRequestError:
        """``error``, with the body's names."""
        return InvalidRequestError(*(replace(v, field=self._name(v.field)) for v in error.violations))

    def _name(self, field: str) -> str:
        for path, name in self.paths:
            if field.startswith(path) and field[len(path) : len(path) + 1] in ("", ".", "[", "#"):
                return name + field[len(path) :]
        return field

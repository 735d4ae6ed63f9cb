"""From the arguments of a Python call to `GenerateRequest`s: the same for every face."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NewType, get_origin

from typing_extensions import TypeAliasType

from draftline.engine.errors import FieldViolation, InvalidRequestError, kind_of
from draftline.engine.options import suggestion
from draftline.engine.params import ChatOptions, Constraint, RequestOptions, SamplingParams, Speculation, T
from draftline.engine.protocol import GenerateRequest, Prompt
from draftline.engine.request.prompt_input import Located, per_prompt
from draftline.engine.schema import Schema
from draftline.engine.vllm_names import CALL_FOREIGN

ConstraintInput = Constraint[T] | type[T]
"""A constraint, or a type: ``Person`` means ``Schema(Person)``."""

OF_GENERATE = frozenset(("constraint", "use_tqdm"))
"""The keywords of ``generate`` besides those of `RequestOptions`."""

OF_CHAT = OF_GENERATE | ChatOptions.__annotations__.keys()
"""The keywords of ``chat`` besides those of `RequestOptions`."""


_LONGEST_S = 315_576_000_000.0
"""The longest timeout, 10,000 years: the most that a protobuf ``Duration`` may have. A longer one is none."""


def as_request(
    prompt: Prompt,
    sampling_params: object,
    constraint: object,
    options: RequestOptions,
    path: str = "",
    *,
    own: Iterable[str] = OF_GENERATE,
) -> GenerateRequest:
    """Make a request from a prompt, its sampling, its constraint and its keywords.

    Args:
        prompt: the prompt.
        sampling_params: its sampling.
        constraint: its constraint.
        options: the keywords that are left of the call.
        path: the request's place in the call's arguments.
        own: the call's keywords besides those of `RequestOptions`, for the error of a misspelt one.

    Raises:
        TypeError: an unknown keyword. The message names the closest known one, or what replaces vLLM's.
        InvalidRequestError: an argument has a wrong type, or is out of bounds.
    """
    known = RequestOptions.__annotations__
    for name in options:
        if name not in known:
            meant = f". {CALL_FOREIGN[name]}" if name in CALL_FOREIGN else suggestion(name, {*known, *own} - {name})
            raise TypeError(f"unexpected keyword argument {name!r}{meant}")
    sampling = SamplingParams() if sampling_params is None else sampling_params
    speculation = Speculation() if options.get("speculation") is None else options["speculation"]
    wrong = [*_of_type("sampling_params", sampling, SamplingParams), *_of_type("speculation", speculation, Speculation)]
    wrong += [*_wrong_priority(options.get("priority", 0)), *_wrong_timeout(options.get("timeout"))]
    if wrong:
        raise InvalidRequestError(*wrong)
    return GenerateRequest(
        prompt,
        sampling,  # type: ignore[arg-type]
        as_constraint(constraint),
        speculation,  # type: ignore[arg-type]
        options.get("priority", 0),
        timeout_of(options),
        path,
    )


def timeout_of(options: RequestOptions) -> float | None:
    """Return the timeout among a call's keywords, in seconds; None without one.

    Raises:
        InvalidRequestError: it is none.
    """
    timeout = options.get("timeout")
    if wrong := [*_wrong_timeout(timeout)]:
        raise InvalidRequestError(*wrong)
    return None if timeout is None or timeout > _LONGEST_S else timeout


def as_requests(
    prompts: Sequence[Located],
    sampling_params: SamplingParams | Sequence[SamplingParams] | None,
    constraint: object,
    options: RequestOptions,
    *,
    own: Iterable[str] = OF_GENERATE,
) -> list[GenerateRequest]:
    """Make a request from each prompt; the keywords are for all of them. See `as_request`.

    Raises:
        TypeError: an unknown keyword.
        InvalidRequestError: an argument is wrong, or a list has another number of entries than the prompts.
    """
    samplings = per_prompt("sampling_params", sampling_params, len(prompts))
    # A type is converted once, not for each prompt.
    constraints = (
        [as_constraint(each, f"constraint[{index}]") for index, each in enumerate(constraint)]
        if isinstance(constraint, list | tuple)
        else as_constraint(constraint)
    )
    each = zip(prompts, samplings, per_prompt("constraint", constraints, len(prompts)), strict=True)
    return [as_request(prompt, sampling, one, options, path, own=own) for (prompt, path), sampling, one in each]


def known_constraint(constraint: object) -> Constraint[Any]:
    """Return a constraint; of a type, `Schema`'s. Raises what `as_constraint` raises, and for None too."""
    known = as_constraint(constraint)
    if known is None:
        raise InvalidRequestError(FieldViolation("constraint", "must be a type or a Constraint, not None"))
    return known


def as_constraint(constraint: object, path: str = "constraint") -> Constraint[Any] | None:
    """Return a constraint; of a type, `Schema`'s.

    Raises:
        InvalidRequestError: it is neither.
    """
    if constraint is None or isinstance(constraint, Constraint):
        return constraint
    if isinstance(constraint, type | TypeAliasType | NewType) or get_origin(constraint) is not None:
        return Schema(constraint)
    hint = "; for a JSON Schema, pass Schema(…)" if isinstance(constraint, str | Mapping) else ""
    raise InvalidRequestError(FieldViolation(path, f"must be a Constraint or a type, not {kind_of(constraint)}{hint}"))


def _of_type(name: str, value: object, kind: type) -> Iterator[FieldViolation]:
    if not isinstance(value, kind):
        yield FieldViolation(name, f"must be {kind.__name__}, not {kind_of(value)}")


def _wrong_priority(priority: object) -> Iterator[FieldViolation]:
    if not isinstance(priority, int) or not -(2**31) <= priority < 2**31:
        yield FieldViolation("priority", f"{priority!r} is not a 32-bit integer")


def _wrong_timeout(timeout: object) -> Iterator[FieldViolation]:
    if timeout is None:
        return
    if not isinstance(timeout, int | float) or math.isnan(timeout):
        yield FieldViolation("timeout", f"must be a number of seconds, not {timeout!r}")
    elif timeout <= 0:
        yield FieldViolation("timeout", f"must be more than 0 s, not {timeout:g} s")

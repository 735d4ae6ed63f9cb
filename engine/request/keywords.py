"""From the arguments of a Python call to `GenerateRequest`s: the same for every face."""

from __future__ import annotations

from collections.abc import Sequence

from draftline.engine.options import suggestion
from draftline.engine.params import RequestOptions, SamplingParams, Speculation
from draftline.engine.protocol import GenerateRequest, Prompt
from draftline.engine.request.prompt_input import per_prompt


def as_request(prompt: Prompt, sampling_params: SamplingParams | None, options: RequestOptions) -> GenerateRequest:
    """Make a request from a prompt, its sampling and its keywords.

    Raises:
        TypeError: an unknown keyword. The message names the closest known one.
    """
    known = RequestOptions.__annotations__
    for name in options:
        if name not in known:
            raise TypeError(f"unexpected keyword argument {name!r}{suggestion(name, known)}")
    return GenerateRequest(
        prompt,
        sampling_params or SamplingParams(),
        options.get("constraint"),
        options.get("speculation") or Speculation(),
        options.get("priority", 0),
        options.get("timeout"),
    )


def as_requests(
    prompts: Sequence[Prompt],
    sampling_params: SamplingParams | Sequence[SamplingParams] | None,
    options: RequestOptions,
) -> list[GenerateRequest]:
    """Make a request from each prompt; the keywords are for all of them. See `as_request`.

    Raises:
        InvalidRequestError: the numbers of prompts and sampling parameters differ.
    """
    each = zip(prompts, per_prompt(sampling_params, len(prompts)), strict=True)
    return [as_request(prompt, sampling, options) for prompt, sampling in each]

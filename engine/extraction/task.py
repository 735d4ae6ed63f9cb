"""From the arguments of ``extract`` to the `Attempts` of each text, and their way through an engine with asyncio."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import Any, Generic, cast

from draftline.engine.errors import DraftlineError, FieldViolation, InvalidRequestError, check_unicode, kind_of
from draftline.engine.extraction.attempts import Attempts
from draftline.engine.extraction.progress import ProgressBar
from draftline.engine.extraction.prompt import ExtractionPrompt
from draftline.engine.extraction.result import Extraction
from draftline.engine.outputs import RequestOutput
from draftline.engine.params import Constraint, RequestOptions, SamplingParams, T
from draftline.engine.protocol import GenerateRequest
from draftline.engine.request.keywords import ConstraintInput, as_constraint, as_request
from draftline.engine.request.prompt_input import per_prompt


class ExtractionOptions(RequestOptions, Generic[T], total=False):
    """The keywords of ``extract`` on every face, and those of every request."""

    instructions: str | None
    """What to extract, before the text; made from the type's name where None, the default."""

    examples: Iterable[tuple[str, T]]
    """Texts with their values; none by default."""

    retry: int
    """How often a text is tried again, with another seed and the error, after an answer that is no value; 0 by
    default."""

    use_tqdm: bool
    """Show a progress bar on standard error: texts done, failed, and their rate. True by default."""


_KEYWORDS = ExtractionOptions.__annotations__

MAX_TOKENS = 1024
"""Maximum tokens of an answer whose sampling parameters do not say."""

_GREEDY = SamplingParams(temperature=0)


def extraction_attempts(
    texts: str | Iterable[str],
    output_type: ConstraintInput[T],
    sampling_params: SamplingParams | Sequence[SamplingParams] | None,
    options: ExtractionOptions[T],
    *,
    as_chat: bool,
) -> list[Attempts[T]]:
    """Begin an extraction.

    Args:
        texts: one text, or several.
        output_type: a type, or a constraint.
        sampling_params: for all texts, or a list with one for each; greedy where None.
        options: the keywords of the call.
        as_chat: whether the model has a chat template.

    Returns:
        The attempts of each text.

    Raises:
        InvalidRequestError: an argument that concerns all texts is wrong.
        TypeError: an unknown keyword.
    """
    known = options.copy()
    instructions, retry = known.pop("instructions", None), known.pop("retry", 0)
    examples = known.pop("examples", ())
    known.pop("use_tqdm", None)
    constraint = as_constraint(output_type, "output_type")
    if constraint is None:
        raise _wrong("output_type", "must be a type or a Constraint, not None")
    if not isinstance(texts, str | Iterable) or isinstance(texts, bytes | dict):
        raise _wrong("texts", f"must be a list of texts, not {kind_of(texts)}")
    if instructions is not None and not isinstance(instructions, str):
        raise _wrong("instructions", f"must be text, not {kind_of(instructions)}")
    if not isinstance(retry, int) or retry < 0:
        raise _wrong("retry", f"must be a number of attempts, 0 or more, not {retry!r}")
    if instructions is not None:
        check_unicode("instructions", instructions)
    prompt = ExtractionPrompt(instructions or _instructions(constraint), _examples(examples, constraint), as_chat)
    several = [texts] if isinstance(texts, str) else list(texts)
    samplings = per_prompt("sampling_params", sampling_params, len(several))
    requests = [
        as_request("", _sampling(sampling), constraint, cast(RequestOptions, known), f"texts[{index}]", own=_KEYWORDS)
        for index, sampling in enumerate(samplings)
    ]
    each = enumerate(zip(several, requests, strict=True))
    return [Attempts(index, text, prompt, request, retry) for index, (text, request) in each]


async def run_attempts(
    attempts: Sequence[Attempts[T]],
    ask: Callable[[GenerateRequest, Callable[[], None]], Awaitable[RequestOutput[Any]]],
    *,
    max_in_flight: int,
    show_progress: bool,
) -> list[Extraction[T]]:
    """Run attempts to their results.

    Args:
        attempts: one for each text.
        ask: sends a request and waits for its output. It raises the error that refused or ended the request, and calls
            the function once the output has begun, or more often.
        max_in_flight: limit of requests at once.
        show_progress: show a progress bar on standard error.
    """
    gate = asyncio.Semaphore(max_in_flight)

    async def run(each: Attempts[T]) -> Extraction[T]:
        async with gate:
            while True:
                try:
                    result = each.take(await ask(each.request(), progress.begun))
                except DraftlineError as error:
                    result = each.take(error)
                if result is not None:
                    progress.add(result)
                    return result

    with ProgressBar(len(attempts), show=show_progress) as progress:
        tasks = [asyncio.ensure_future(run(each)) for each in attempts]
        try:
            return await asyncio.gather(*tasks)
        finally:
            for task in tasks:
                task.cancel()


def _sampling(params: object) -> object:
    """Parameters for one answer: as few surprises as possible where the caller asks for none."""
    params = _GREEDY if params is None else params
    if not isinstance(params, SamplingParams):
        return params  # `as_request` rejects it
    if params.n != 1:
        raise _wrong("sampling_params.n", f"must be 1, not {params.n}: each text has one value")
    return params.model_copy(update={"max_tokens": MAX_TOKENS}) if params.max_tokens is None else params


def _instructions(constraint: Constraint[Any]) -> str:
    name = getattr(constraint.output_type, "__name__", None)
    return f"Extract the {name} as JSON from this text:" if name else "Extract the data as JSON from this text:"


def _examples(examples: Iterable[tuple[str, T]], constraint: Constraint[T]) -> tuple[tuple[str, str], ...]:
    if isinstance(examples, str | bytes | Mapping) or not isinstance(examples, Iterable):
        raise _wrong("examples", f"must be a list of pairs of a text and its value, not {kind_of(examples)}")
    pairs: list[tuple[str, str]] = []
    for index, example in enumerate(examples):
        if not isinstance(example, tuple) or len(example) != 2 or not isinstance(example[0], str):
            raise _wrong(f"examples[{index}]", "must be a pair of a text and its value")
        check_unicode(f"examples[{index}]", example[0])
        try:
            pairs.append((example[0], constraint.dump(example[1])))
        except ValueError as error:
            raise _wrong(f"examples[{index}]", f"its value is none of the type: {error}") from error
    return tuple(pairs)


def _wrong(field: str, problem: str) -> InvalidRequestError:
    return InvalidRequestError(FieldViolation(field, problem))

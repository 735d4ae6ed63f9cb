"""``record``: write an engine's updates into an `Answer`."""

from __future__ import annotations

from draftline.engine.bench.load.answers import Answer
from draftline.engine.bench.targets.target import Question, RequestError
from draftline.engine.errors import CallFailedError, EngineStoppedError
from draftline.engine.outputs import Delta, Failed, Finished, Update
from draftline.engine.params import SamplingParams
from draftline.engine.protocol import GenerateRequest
from draftline.engine.server.codes import code_name


def request_of(question: Question) -> GenerateRequest:
    """A question as a request."""
    sampling = SamplingParams(
        max_tokens=question.max_tokens,
        ignore_eos=question.ignore_eos,
        temperature=question.temperature,
        seed=question.seed,
    )
    return GenerateRequest(question.prompt, sampling)


def record(answer: Answer, update: Update, now: float) -> bool:
    """Write an update that arrived at ``now``. Returns whether it ends the request.

    Raises:
        RequestError: the update is an error.
    """
    match update:
        case Delta():
            if update.token_ids:
                answer.arrivals.append((now, len(update.token_ids)))
                answer.token_ids += update.token_ids
            answer.text += update.text
            return False
        case Finished():
            answer.tokens = update.usage.completion_tokens
            answer.prompt_tokens = update.usage.prompt_tokens
            answer.cached_tokens = update.usage.cached_tokens
            answer.drafted, answer.accepted = update.speculation.drafted, update.speculation.accepted
            return True
        case Failed():
            raise as_request_error(update.error)


def as_request_error(error: BaseException) -> RequestError:
    """A request's error, with the code that the server gives it."""
    if isinstance(error, CallFailedError):  # its message begins with the code
        code, _, message = str(error).partition(": ")
        return RequestError(code, message) if message else RequestError("CONNECTION", code)
    if isinstance(error, EngineStoppedError):
        return RequestError("UNAVAILABLE", str(error))
    return RequestError(code_name(error), str(error))

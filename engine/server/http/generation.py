"""``Generation``: the engine's requests of one HTTP request, one for each prompt, and their common end."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, TypeVar

from starlette.types import Receive

from draftline.engine.chat.messages import Chat
from draftline.engine.errors import FieldViolation, InvalidRequestError
from draftline.engine.outputs import Delta, Failed, Finished, RequestOutput, Update
from draftline.engine.protocol import EngineClient, GenerateRequest, Prompt
from draftline.engine.request.request import text_violations, utf8_size
from draftline.engine.request.tokenization import last_tokens
from draftline.engine.server.http.call import HttpCall
from draftline.engine.server.http.errors import DisconnectedError
from draftline.engine.server.http.fields import Names
from draftline.engine.server.in_flight import InFlightRequest
from draftline.engine.server.limits import token_violations
from draftline.engine.server.state import ServerState
from draftline.engine.streaming.accumulator import Accumulator
from draftline.engine.streaming.mailbox import Mailbox

_T = TypeVar("_T")

FIRST_S = 0.25
"""Seconds for which a stream waits for its first update. An error until then has a status of its own."""


@dataclass(frozen=True, slots=True)
class PromptRequest:
    """One prompt's request.

    Attributes:
        request: for the engine.
        names: of the body's fields, for errors.
        keep_tokens: cut the prompt to its last tokens, this many; -1 to as many as fit; None keeps all.
        needs_ids: whether the answer shows or counts the prompt's tokens before its end.
        add_special_tokens: whether a text gets the special tokens that the model's tokenizer puts around it.
    """

    request: GenerateRequest
    names: Names
    keep_tokens: int | None = None
    needs_ids: bool = False
    add_special_tokens: bool = True

    @property
    def token_ids(self) -> Sequence[int]:
        """The prompt's tokens, where they are needed and the generation has started; none if it was ended before."""
        request = self.request
        return (request.prompt_token_ids or ()) if isinstance(request.prompt, str | Chat) else request.prompt


class Generation:
    """The requests of one HTTP request. They are admitted and submitted together, and end together.

    Attributes:
        submitted: the requests as the engine has them, with token ids as prompts where these are needed.
    """

    def __init__(self, state: ServerState, call: HttpCall) -> None:
        """An HTTP request that has arrived. Its first engine request is reported even if it is refused."""
        self._state = state
        self._call = call
        self._mailbox = Mailbox(state.hub)
        self.submitted: list[PromptRequest] = []
        self._in_flight: list[InFlightRequest] = []
        self._index: dict[str, int] = {}
        self._first: list[tuple[str, Update]] = []
        self._open: set[int] = set()
        self._add()

    def _add(self) -> InFlightRequest:
        request_id = self._state.next_id()
        index = len(self._in_flight)
        self._index[request_id] = index
        self._in_flight.append(
            InFlightRequest(self._state, self._call, request_id, self._call.client_id, self._mailbox)
        )
        return self._in_flight[-1]

    async def start(self, requests: Sequence[PromptRequest]) -> None:
        """Admit and submit the requests.

        Raises:
            DraftlineError: the server or the engine refuses one of them. Then none continues, once this is closed.
        """
        for index, each in enumerate(requests):
            in_flight = self._in_flight[0] if index == 0 else self._add()
            engine = in_flight.admit()
            try:
                self._open.add(index)
                request = await in_flight.submit(each.request, partial(self._with_ids, each, engine))
                self.submitted.append(replace(each, request=request))
            except InvalidRequestError as error:
                raise each.names.error(error) from error

    @property
    def is_open(self) -> bool:
        """Whether there are updates to come."""
        return bool(self._open)

    async def begun(self) -> None:
        """Wait for the first updates, but not for long: an engine in another process refuses requests by an update.

        Raises:
            Exception: the fault that ended a request.
        """
        with suppress(TimeoutError):
            async with asyncio.timeout(FIRST_S):
                self._first = await self._mailbox.take()
        if any(isinstance(update, Failed) for _, update in self._first):
            for _ in self._noted(self._first):
                pass

    async def updates(self) -> Iterator[tuple[int, Delta | Finished]]:
        """The next updates, each with the index of its prompt. Waits until there are some.

        Raises:
            Exception: from the iterator: the fault that ended a request.
        """
        updates, self._first = self._first or await self._mailbox.take(), []
        return self._noted(updates)

    def _noted(self, updates: Iterable[tuple[str, Update]]) -> Iterator[tuple[int, Delta | Finished]]:
        for request_id, update in updates:
            index = self._index[request_id]
            if index not in self._open:
                continue  # it had ended when its deadline passed, or a drain cut it off
            is_last = self._in_flight[index].note(update)
            if isinstance(update, Failed):
                error = update.error
                raise self.submitted[index].names.error(error) if isinstance(error, InvalidRequestError) else error
            if is_last:
                self._in_flight[index].close()
                self._open.discard(index)
            yield index, update

    async def outputs(self) -> list[RequestOutput[Any]]:
        """The outputs of all prompts, once all have ended.

        Raises:
            Exception: the fault that ended a request.
        """
        accumulators = [
            Accumulator("", each.request, [] if isinstance(each.request.prompt, str | Chat) else each.request.prompt)
            for each in self.submitted
        ]
        while self.is_open:
            for index, update in await self.updates():
                accumulators[index].take(update)
        return [accumulator.result() for accumulator in accumulators]

    async def _with_ids(self, prompt: PromptRequest, engine: EngineClient, request: GenerateRequest) -> GenerateRequest:
        """The request, with token ids as its prompt if they are needed, cut to the last ones if it asks for that."""
        if prompt.keep_tokens is None and not prompt.needs_ids and prompt.add_special_tokens:
            return request
        ids = await token_ids(request.prompt, self._state, self._call)
        if isinstance(request.prompt, str) and not prompt.add_special_tokens:
            ids = list(engine.tokenizer.within(ids))
        if prompt.keep_tokens is not None:
            ids = list(last_tokens(ids, prompt.keep_tokens, engine.info))
        if isinstance(request.prompt, Chat):
            return replace(request, prompt_token_ids=ids)
        return replace(request, prompt=ids)

    def close(self, error: BaseException | None = None) -> None:
        """End all requests, because of ``error``. Those that run are cancelled. Idempotent."""
        for in_flight in self._in_flight:
            in_flight.close(error)


async def until_disconnect(receive: Receive, work: Coroutine[Any, Any, _T]) -> _T:
    """``work``, which a disconnect of the client cancels. The body must have been read.

    Raises:
        DisconnectedError: the client has gone.
    """
    working = asyncio.ensure_future(work)
    watching = asyncio.ensure_future(_disconnect(receive))
    try:
        await asyncio.wait({working, watching}, return_when=asyncio.FIRST_COMPLETED)
        if not working.done():
            raise DisconnectedError
        return working.result()
    finally:
        watching.cancel()
        working.cancel()
        await asyncio.gather(working, watching, return_exceptions=True)


async def _disconnect(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


async def token_ids(prompt: Prompt, state: ServerState, call: HttpCall) -> list[int]:
    """The token ids of a prompt."""
    if isinstance(prompt, str | Chat):
        return list(await state.tokenizers.token_ids(prompt, call.caller.identity(call.origin.peer)))
    return list(prompt)


def check_prompt(prompt: str | Sequence[int], engine: EngineClient, names: Names, keep_tokens: int | None) -> None:
    """Check the length of a text or of token ids, before anything is made of them.

    Raises:
        InvalidRequestError: the prompt is too long.
    """
    if isinstance(prompt, str):
        wrong = [*text_violations(utf8_size(prompt), engine.info, "text")]
    else:
        wrong = [*token_violations(prompt, engine.info, "token_ids", cut=keep_tokens is not None)]
    if wrong:
        raise names.error(InvalidRequestError(*wrong))


def adds_special_tokens(asked: bool | None, prompt: str | Sequence[int]) -> bool:
    """Whether a prompt gets the special tokens that the tokenizer puts around a text.

    Args:
        asked: the body's ``add_special_tokens``.
        prompt: a text or token ids.

    Raises:
        InvalidRequestError: token ids are to get some.
    """
    if asked and not isinstance(prompt, str):
        problem = "is not supported for token ids: they are the whole prompt"
        raise InvalidRequestError(FieldViolation("add_special_tokens", problem))
    return asked is not False

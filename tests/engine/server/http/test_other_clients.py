"""Libraries that speak to OpenAI, unmodified, doing an extraction on the embedded model. Install those that you want to run."""

from __future__ import annotations

import gc
import warnings
from collections.abc import Iterator
from typing import Any, Literal

import pytest
from pydantic import BaseModel, ConfigDict
from served_on_a_thread import served_on_a_thread

from draftline.engine.config import EngineConfig
from draftline.engine.threaded_engine import start_engine

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]

TEXT = "Marie Curie was born in Warsaw in 1867."


class Person(BaseModel):
    """A person."""

    model_config = ConfigDict(extra="forbid")

    name: Literal["Marie Curie", "Ada Lovelace"]
    born: int


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    """A server of the embedded model, on a thread of its own."""
    engine = start_engine(EngineConfig(device="cpu", max_num_seqs=8))
    with served_on_a_thread(engine) as server:
        yield f"http://{server.http_address}/v1"
    with warnings.catch_warnings():  # some clients leave connections open
        warnings.simplefilter("ignore")
        gc.collect()


def imported(name: str) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return pytest.importorskip(name, reason=f"needs {name}, which the development dependencies leave out")


def test_langchain(url: str) -> None:
    chat = imported("langchain_openai").ChatOpenAI(
        base_url=url, api_key="unused", model="smollm2", max_tokens=60, seed=1
    )
    assert chat.invoke("Name a city.").content
    assert "".join(chunk.content for chunk in chat.stream("Name a city."))
    person = chat.with_structured_output(Person, method="json_schema").invoke(TEXT)
    assert isinstance(person, Person)


def test_instructor(url: str) -> None:
    instructor = imported("instructor")
    openai = imported("openai")
    client = instructor.from_openai(openai.OpenAI(base_url=url, api_key="unused"), mode=instructor.Mode.JSON_SCHEMA)
    messages = [{"role": "user", "content": TEXT}]
    person = client.chat.completions.create(model="smollm2", messages=messages, response_model=Person, max_tokens=60)
    assert isinstance(person, Person)


def test_pydantic_ai(url: str) -> None:
    pydantic_ai = imported("pydantic_ai")
    models, providers = imported("pydantic_ai.models.openai"), imported("pydantic_ai.providers.openai")
    model = models.OpenAIChatModel("smollm2", provider=providers.OpenAIProvider(base_url=url, api_key="unused"))
    agent = pydantic_ai.Agent(model, output_type=pydantic_ai.NativeOutput(Person))
    assert isinstance(agent.run_sync(TEXT).output, Person)


def test_langchain_binds_tools(url: str) -> None:
    chat = imported("langchain_openai").ChatOpenAI(
        base_url=url, api_key="unused", model="smollm2", max_tokens=80, temperature=0
    )
    messages = imported("langchain_core.messages")
    bound = chat.bind_tools([Person], tool_choice="required", parallel_tool_calls=False)
    answer = bound.invoke(TEXT)
    [call] = answer.tool_calls
    assert Person.model_validate(call["args"])
    first, *more = bound.stream(TEXT)
    [streamed] = sum(more, start=first).tool_calls
    assert streamed["args"] == call["args"]
    result = messages.ToolMessage("stored", tool_call_id=call["id"])
    assert chat.invoke([messages.HumanMessage(TEXT), answer, result]).content


def test_pydantic_ai_calls_tools(url: str) -> None:
    pydantic_ai = imported("pydantic_ai")
    models, providers = imported("pydantic_ai.models.openai"), imported("pydantic_ai.providers.openai")
    model = models.OpenAIChatModel("smollm2", provider=providers.OpenAIProvider(base_url=url, api_key="unused"))
    agent = pydantic_ai.Agent(model, output_type=Person)  # by a tool's call, which is required
    assert isinstance(agent.run_sync(TEXT, model_settings={"max_tokens": 200}).output, Person)


def test_pydantic_ai_runs_a_tool_loop(url: str) -> None:
    """The model calls functions until it gives its answer. It is small: with some seed it asks before it answers."""
    pydantic_ai = imported("pydantic_ai")
    models, providers = imported("pydantic_ai.models.openai"), imported("pydantic_ai.providers.openai")
    model = models.OpenAIChatModel("smollm2", provider=providers.OpenAIProvider(base_url=url, api_key="unused"))
    agent = pydantic_ai.Agent(model, output_type=Person)
    asked: list[tuple[str, int]] = []

    @agent.tool_plain  # type: ignore[untyped-decorator, unused-ignore]
    def births(place: Literal["Warsaw", "London"], year: int) -> str:
        """Who was born in a place in a year."""
        asked.append((place, year))
        return "Marie Curie" if place == "Warsaw" else "Ada Lovelace"

    for seed in range(20):
        asked.clear()
        settings = {"max_tokens": 200, "temperature": 1.0, "seed": seed, "parallel_tool_calls": False}
        limits = pydantic_ai.UsageLimits(request_limit=6)
        try:
            result = agent.run_sync(f"Look up who this is: {TEXT}", model_settings=settings, usage_limits=limits)
        except (pydantic_ai.UsageLimitExceeded, pydantic_ai.UnexpectedModelBehavior):
            continue  # it goes on asking, or an answer was cut off
        assert isinstance(result.output, Person)
        parts = [part for message in result.all_messages() for part in message.parts]
        returned = [part for part in parts if part.part_kind == "tool-return" and part.tool_name == "births"]
        assert len(returned) == len(asked)
        if asked:
            return
    pytest.fail("no run asked before it answered")

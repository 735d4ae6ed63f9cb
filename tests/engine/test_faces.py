"""The in-process faces, `LLM` and `AsyncEngine`: the same verbs as `Client` and `AsyncClient`, on a tiny random model."""

from __future__ import annotations

import asyncio
import gc
import math
import pickle
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from copy import deepcopy
from typing import Annotated, Any, Literal

import pytest
from byte_tokenizer import write_byte_model
from patience import PATIENCE_S
from pydantic import AfterValidator, ValidationError

from draftline import (
    LLM,
    AsyncEngine,
    Chat,
    Constraint,
    ConstraintReport,
    DeadlineExceededError,
    EngineStoppedError,
    SamplingParams,
    Schema,
)
from draftline.engine.config import EngineConfig, EngineOptions
from draftline.engine.protocol import Submitted
from draftline.engine.streaming.mailbox import Hub
from draftline.engine.threaded_engine import ThreadedEngine, start_engine
from draftline.structured.compiled import CompiledConstraint
from draftline.structured.compiler import ConstraintCompiler
from draftline.structured.constraint import ConstraintSpec

OPTIONS: EngineOptions = {
    "load_format": "dummy",
    "device": "cpu",
    "dtype": "float32",
    "max_num_seqs": 8,
    "kv_cache_memory_gib": 0.01,
}
GREEDY = SamplingParams(temperature=0, max_tokens=4, ignore_eos=True)
CHAT = [{"role": "user", "content": "hello"}]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A random Llama over bytes, with a chat template."""
    return write_byte_model(tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="module")
def llm(model: str) -> Iterator[LLM]:
    with LLM(model, **OPTIONS) as llm:
        yield llm


def test_an_llm_generates_and_chats(llm: LLM) -> None:
    one, two = llm.generate(["abc", {"prompt_token_ids": [97]}], [GREEDY, SamplingParams(max_tokens=2)], use_tqdm=False)
    assert len(one.outputs[0].token_ids) == 4
    assert two.prompt_token_ids == [97]
    [answer] = llm.chat(CHAT, GREEDY, use_tqdm=False, priority=1)
    assert answer.prompt_token_ids == llm.tokenizer.encode_chat([("user", "hello")])
    parts: Any = [{"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]}]
    [answer] = llm.chat(parts, GREEDY, use_tqdm=False)
    assert answer.prompt_token_ids == llm.tokenizer.encode_chat([("user", "a\nb")])
    [labelled] = llm.generate({"prompt": "a", "prompt_token_ids": [97]}, GREEDY, use_tqdm=False)
    assert labelled.prompt_token_ids == [97]
    [chosen] = llm.generate("abc", constraint=Constraint(choice=["yes"]), use_tqdm=False)
    assert chosen.outputs[0].text == "yes"


@pytest.mark.parametrize("frozen", [0, 1])
def test_the_collector_skips_older_objects_while_an_llm_runs(
    frozen: int, llm: LLM, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[str] = []
    monkeypatch.setattr(gc, "get_freeze_count", lambda: frozen)
    monkeypatch.setattr(gc, "freeze", lambda: calls.append("freeze"))
    monkeypatch.setattr(gc, "unfreeze", lambda: calls.append("unfreeze"))
    llm.generate("abc", GREEDY, use_tqdm=False)
    with pytest.raises(DeadlineExceededError):
        llm.generate("abc", GREEDY, timeout=1e-9, use_tqdm=False)
    assert calls == ([] if frozen else ["freeze", "unfreeze"] * 2), "a program's own frozen heap stays so"


def test_the_steps_of_an_llm_may_take_long(llm: LLM, model: str) -> None:
    assert llm.config.inter_token_target == math.inf
    with LLM(model, **OPTIONS, inter_token_target=0.5) as other:
        assert other.config.inter_token_target == 0.5


def test_an_llm_ends_requests_whose_time_is_over(llm: LLM) -> None:
    with pytest.raises(DeadlineExceededError):
        llm.generate("abc", GREEDY, timeout=1e-9, use_tqdm=False)
    [output] = llm.chat(CHAT, GREEDY, timeout=300, use_tqdm=False)
    assert output.finished


def test_an_unknown_keyword_is_named_with_the_closest_known_one(llm: LLM) -> None:
    with pytest.raises(TypeError, match=r"unexpected keyword argument 'timeoutt'; did you mean timeout\?"):
        llm.generate("abc", timeoutt=3)  # type: ignore[call-arg]
    with pytest.raises(TypeError, match=r"unexpected keyword argument 'use_tqmd'; did you mean use_tqdm\?"):
        llm.generate("abc", use_tqmd=False)  # type: ignore[call-arg]
    with pytest.raises(TypeError, match=r"unexpected keyword argument 'tool'; did you mean tools\?"):
        llm.chat(CHAT, tool=[])  # type: ignore[call-arg]
    with pytest.raises(ValidationError, match=r"max_num_seq: is not .*; did you mean max_num_seqs\?"):
        LLM(max_num_seq=3)  # type: ignore[call-arg]


@pytest.mark.parametrize("verb", ["generate", "extract"])
def test_an_interrupt_leaves_no_request_behind(llm: LLM, verb: str, monkeypatch: pytest.MonkeyPatch) -> None:
    core = llm._core
    assert core is not None
    step, steps = core.step, iter([None] * 3)

    def interrupted() -> None:
        next(steps)
        step()

    arguments = (["abc", "abd"],) if verb == "generate" else (["abc", "abd"], Constraint(regex="a{50}"))
    monkeypatch.setattr(core, "step", interrupted)
    with pytest.raises(StopIteration):
        getattr(llm, verb)(*arguments, SamplingParams(max_tokens=100, ignore_eos=True), use_tqdm=False)
    monkeypatch.undo()
    core.step()
    assert not core.has_work
    assert llm.stats().running == 0


def test_threads_take_turns(llm: LLM) -> None:
    params = [SamplingParams(max_tokens=12, seed=seed, ignore_eos=True) for seed in range(6)]
    expected = [llm.generate("abc", each, use_tqdm=False)[0].outputs[0].token_ids for each in params]
    with ThreadPoolExecutor(6) as threads:
        outputs = list(threads.map(lambda each: llm.generate("abc", each, use_tqdm=False), params, timeout=PATIENCE_S))
    assert [each.outputs[0].token_ids for [each] in outputs] == expected


def test_a_validator_cannot_call_the_llm_that_runs_it(llm: LLM) -> None:
    def asks(value: str) -> str:
        llm.generate("a", use_tqdm=False)
        return value

    asking = Annotated[Literal["a"], AfterValidator(asks)]
    [result] = llm.extract("a", Schema(list[asking]), use_tqdm=False, instructions="x", retry=0)
    assert "runs a call of this thread already" in str(result.error)
    assert len(llm.generate("a", GREEDY, use_tqdm=False)) == 1


def test_copies_of_an_output_have_its_value(llm: LLM) -> None:
    [output] = llm.generate("abc", constraint=Schema(Literal["yes"]), use_tqdm=False)
    for copied in (pickle.loads(pickle.dumps(output.outputs[0])), deepcopy(output.outputs[0])):
        assert copied.parsed == "yes"


def test_a_closed_llm_says_so(model: str) -> None:
    with LLM(model, **OPTIONS) as llm:
        tokenizer = llm.tokenizer
    llm.close()
    assert llm.tokenizer is tokenizer
    for call in (lambda: llm.generate("abc"), lambda: llm.chat(CHAT), llm.stats):
        with pytest.raises(EngineStoppedError, match="the LLM is closed"):
            call()


async def test_an_async_engine_generates_and_chats_until_it_is_closed(model: str, llm: LLM) -> None:
    async with await AsyncEngine.create(model, **OPTIONS) as engine:
        outputs = [output async for output in engine.generate("abc", GREEDY, request_id="mine")]
        assert {output.request_id for output in outputs} == {"mine"}
        whole = outputs[-1]
        assert whole.finished
        assert whole.outputs[0].token_ids == llm.generate("abc", GREEDY, use_tqdm=False)[0].outputs[0].token_ids

        answers = [output async for output in engine.chat(CHAT, GREEDY)]
        from_chat = [output async for output in engine.generate(Chat((("user", "hello"),)), GREEDY)]
        assert answers[-1].outputs[0].token_ids == from_chat[-1].outputs[0].token_ids
        by_ids = [output async for output in engine.generate({"prompt_token_ids": [97]}, GREEDY)]
        assert by_ids[-1].prompt_token_ids == [97]

        with pytest.raises(DeadlineExceededError):
            async for _ in engine.generate("abc", GREEDY, timeout=1e-9):
                pass
        with pytest.raises(TypeError, match=r"'prioritty'; did you mean priority\?"):
            engine.chat(CHAT, prioritty=1)  # type: ignore[call-arg]
        running = engine.generate("abc", SamplingParams(max_tokens=400, ignore_eos=True))
        await anext(running)
    with pytest.raises(EngineStoppedError):
        async for _ in running:
            pass
    with pytest.raises(EngineStoppedError):
        await anext(engine.generate("abc"))
    await engine.close()


async def test_leaving_an_async_engines_iteration_cancels_the_request(model: str) -> None:
    async with await AsyncEngine.create(model, **OPTIONS) as engine:
        outputs = engine.generate("abc", SamplingParams(max_tokens=400, ignore_eos=True))
        await anext(outputs)
        await outputs.aclose()
        async with asyncio.timeout(PATIENCE_S):
            while engine.stats().running:
                await asyncio.sleep(0.01)


async def test_a_request_that_is_left_while_it_is_submitted_is_cancelled(
    model: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    entered, left, submitted = threading.Semaphore(0), threading.Event(), threading.Semaphore(0)
    async with await AsyncEngine.create(model, **OPTIONS) as engine:
        submit = engine._engine.submit

        def slowly(*arguments: Any) -> Submitted:
            entered.release()
            left.wait()
            try:
                return submit(*arguments)
            finally:
                submitted.release()

        monkeypatch.setattr(engine._engine, "submit", slowly)
        requests = [engine.generate("abc", SamplingParams(max_tokens=400, ignore_eos=True)) for _ in range(4)]
        tasks = [asyncio.create_task(anext(each)) for each in requests]  # type: ignore[arg-type]
        for _ in tasks:
            await asyncio.to_thread(entered.acquire)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        left.set()
        for _ in tasks:
            await asyncio.to_thread(submitted.acquire)
        assert [output async for output in engine.generate("abc", GREEDY)][-1].finished
        async with asyncio.timeout(PATIENCE_S):
            while (stats := engine.stats()).running or stats.waiting:
                await asyncio.sleep(0.01)
        assert stats.generated_tokens < 400


async def test_leaving_a_request_that_has_ended_leaves_the_next_one_with_its_id_alone(model: str) -> None:
    async with await AsyncEngine.create(model, **OPTIONS) as engine:
        ended = engine.generate("abc", GREEDY, request_id="mine")
        while not (await anext(ended)).finished:
            pass
        running = engine.generate("abc", SamplingParams(max_tokens=400, ignore_eos=True), request_id="mine")
        await anext(running)
        await ended.aclose()
        assert [output async for output in running][-1].outputs[0].finish_reason == "length"


async def test_all_requests_of_an_event_loop_wake_it_together(model: str, monkeypatch: pytest.MonkeyPatch) -> None:
    hubs: set[Hub] = set()
    post = Hub.post

    def posting(hub: Hub, *arguments: Any) -> None:
        hubs.add(hub)
        post(hub, *arguments)

    async def finish(engine: AsyncEngine) -> None:
        assert [output async for output in engine.generate("abc", GREEDY)][-1].finished

    monkeypatch.setattr(Hub, "post", posting)
    async with await AsyncEngine.create(model, **OPTIONS) as engine:
        await asyncio.gather(finish(engine), finish(engine))
        assert len(hubs) == 1
        await asyncio.to_thread(asyncio.run, finish(engine))
        assert len(hubs) == 2


async def test_a_constraint_that_compiles_holds_up_no_other_request(
    model: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(1))
    submit, goes_on = ConstraintCompiler.submit, threading.Event()

    def slow(compiler: ConstraintCompiler, constraint: ConstraintSpec, caller: str = "") -> Future[CompiledConstraint]:
        waiting: Future[CompiledConstraint] = Future()
        compiling = submit(compiler, constraint, caller)

        def wait() -> None:
            goes_on.wait(PATIENCE_S)
            waiting.set_result(compiling.result())

        threading.Thread(target=wait).start()
        return waiting

    async def last(constraint: Constraint[Any] | None = None) -> str:
        return [output async for output in engine.generate("abc", GREEDY, constraint=constraint)][-1].outputs[0].text

    async with await AsyncEngine.create(model, **OPTIONS) as engine:
        monkeypatch.setattr(ConstraintCompiler, "submit", slow)
        constrained = asyncio.create_task(last(Constraint(choice=["yes"])))
        await asyncio.sleep(0.1)  # it waits
        await last()
        assert not constrained.done()
        monkeypatch.undo()
        goes_on.set()
        assert await constrained == "yes"


async def test_a_timeout_ends_a_request_whose_step_hangs(model: str, monkeypatch: pytest.MonkeyPatch) -> None:
    async with await AsyncEngine.create(model, **OPTIONS) as engine:
        core, go_on = engine._engine._core, threading.Event()
        step = core.step

        def hang() -> None:
            assert go_on.wait(PATIENCE_S)
            step()

        monkeypatch.setattr(core, "step", hang)
        try:
            with pytest.raises(DeadlineExceededError):
                [_ async for _ in engine.generate("a", GREEDY, timeout=0.01)]
        finally:
            go_on.set()


async def test_a_closed_async_engine_says_so(model: str) -> None:
    async with await AsyncEngine.create(model, **OPTIONS) as engine:
        await engine.compile(bool)
        waiting = [asyncio.create_task(engine.compile(Constraint(regex=f"a{{{n}}}"))) for n in range(1, 40)]
        await asyncio.sleep(0)
    for call in (engine.compile(bool), engine.compile(int), engine.extract(["a"], bool, use_tqdm=False)):
        with pytest.raises(EngineStoppedError, match="stop"):
            await call
    outcomes = await asyncio.gather(*waiting, return_exceptions=True)
    failed = [each for each in outcomes if not isinstance(each, ConstraintReport)]
    assert failed
    assert {str(each) for each in failed} == {"the engine stopped before the constraint was compiled"}


async def test_a_load_that_is_cancelled_leaves_no_engine(model: str, monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[ThreadedEngine] = []
    begun, may_end = threading.Event(), threading.Event()

    def start(config: EngineConfig) -> ThreadedEngine:
        begun.set()
        assert may_end.wait(PATIENCE_S)
        started.append(start_engine(config))
        return started[0]

    monkeypatch.setattr("draftline.engine.async_engine.start_engine", start)
    creating = asyncio.create_task(AsyncEngine.create(model, **OPTIONS))
    assert await asyncio.to_thread(begun.wait, PATIENCE_S)
    creating.cancel()
    with pytest.raises(asyncio.CancelledError):
        await creating
    may_end.set()
    async with asyncio.timeout(PATIENCE_S):
        while not started or not started[0].stopped.done():
            await asyncio.sleep(0.01)


@pytest.fixture(scope="module")
def program(model: str) -> subprocess.CompletedProcess[str]:
    """A program that forks, and then ends with a request in flight: it takes longer to import torch than to do both."""
    code = f"""
import asyncio, atexit, os, sys, threading
from draftline import LLM, AsyncEngine, EngineStoppedError, ModelLoadError, SamplingParams

atexit.register(lambda: print(*[thread.name for thread in threading.enumerate()]))  # called after the engines' own

MODEL, OPTIONS = {model!r}, {dict(OPTIONS)!r}
llm, engine = LLM(MODEL, **OPTIONS), AsyncEngine(MODEL, **OPTIONS)

async def generate():
    return [output async for output in engine.generate("abc")][-1]

def in_fork():
    calls = lambda: llm.generate("abc", use_tqdm=False), lambda: llm.compile(bool), lambda: asyncio.run(generate())
    for call in calls:
        try:
            call()
        except EngineStoppedError as error:
            assert "fork" in str(error)
        else:
            raise AssertionError("it runs")
    try:
        LLM(MODEL, **OPTIONS)
    except ModelLoadError as error:
        assert "fork" in str(error)
    llm.close()
    sys.exit(7)

if (child := os.fork()) == 0:
    in_fork()
print("fork:", os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
assert llm.generate("abc", constraint=bool, use_tqdm=False)[0].parsed in (True, False)

async def main():
    assert (await generate()).finished
    outputs = engine.generate("abc", SamplingParams(max_tokens=4096, ignore_eos=True))
    await anext(outputs)
    sys.exit(3)

asyncio.run(main())
"""
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)


def test_engines_refuse_forks(program: subprocess.CompletedProcess[str]) -> None:
    assert program.stderr == ""
    assert "fork: 7" in program.stdout.splitlines()


def test_a_program_ends_with_a_request_in_flight(program: subprocess.CompletedProcess[str]) -> None:
    assert (program.returncode, program.stderr) == (3, "")
    assert "draftline-step" not in program.stdout  # Python would end it within torch, which aborts the process
    assert "MainThread" in program.stdout.splitlines()[-1]

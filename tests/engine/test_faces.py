"""The in-process faces, `LLM` and `AsyncEngine`: the same verbs as `Client` and `AsyncClient`, on a tiny random model."""

from __future__ import annotations

import asyncio
import gc
import math
from collections.abc import Iterator

import pytest
from byte_tokenizer import write_byte_model
from patience import PATIENCE_S
from pydantic import ValidationError

from draftline import LLM, AsyncEngine, Chat, Constraint, DeadlineExceededError, EngineStoppedError, SamplingParams
from draftline.engine.config import EngineOptions

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

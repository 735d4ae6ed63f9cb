"""Conversion between the gateway's ``vllm.grpc.engine`` messages and the engine's types.

A request is converted to ``draftline.v1`` first, and validated like every other request of that API. The gateway's
protocol has no unset numbers: a ``top_p``, ``repetition_penalty`` or ``n`` of 0 means 1.
"""

from __future__ import annotations

import datetime
from collections.abc import Iterator, Sequence

from smg_grpc_proto.generated import common_pb2 as common
from smg_grpc_proto.generated import vllm_engine_pb2 as vllm

from draftline import __version__
from draftline.engine.errors import FieldViolation
from draftline.engine.outputs import Delta, Finished, FinishReason, PositionLogprobs
from draftline.engine.protocol import EngineInfo
from draftline.engine.server.limits import refuse
from draftline.engine.stats import EngineStats
from draftline.v1 import engine_pb2 as pb

_FINISH = {
    FinishReason.EOS: "stop",
    FinishReason.STOP: "stop",
    FinishReason.LENGTH: "length",
    FinishReason.CANCELLED: "abort",
}

_UNSUPPORTED = ("kv_transfer_params", "mm_inputs", "media_refs", "kv_transfer_params_json")
"""Fields of a request for features that Draftline does not have."""


def as_request(message: vllm.GenerateRequest) -> pb.GenerateRequest:
    """Convert a gateway's request to ``draftline.v1``.

    Raises:
        InvalidRequestError: listing every field that asks for an unsupported feature.
    """
    params = message.sampling_params
    refuse(*_violations(message))
    request = pb.GenerateRequest(
        sampling=pb.SamplingParams(
            top_p=params.top_p or 1.0,
            top_k=params.top_k,
            min_p=params.min_p,
            frequency_penalty=params.frequency_penalty,
            presence_penalty=params.presence_penalty,
            repetition_penalty=params.repetition_penalty or 1.0,
            min_tokens=params.min_tokens,
            stop=params.stop,
            stop_token_ids=params.stop_token_ids,
            ignore_eos=params.ignore_eos,
            n=params.n or 1,
            logit_bias=params.logit_bias,
        )
    )
    for name in ("temperature", "max_tokens", "logprobs", "prompt_logprobs"):
        if params.HasField(name):
            setattr(request.sampling, name, getattr(params, name))
    if params.HasField("seed"):
        request.sampling.seed = params.seed % 2**64
    match message.WhichOneof("input"):
        case "tokenized":
            request.token_ids.ids.extend(message.tokenized.input_ids)
        case "text":
            request.text = message.text
    _constrain(request, params)
    return request


def _constrain(request: pb.GenerateRequest, params: vllm.SamplingParams) -> None:
    match params.WhichOneof("constraint"):
        case "json_schema" | "regex" | "grammar" | "structural_tag" as kind:
            setattr(request.constraint, kind, getattr(params, kind))
        case "choice":
            request.constraint.choice.choices.extend(params.choice.choices)
        case "json_object" if params.json_object:
            request.constraint.json_object.SetInParent()


def _violations(message: vllm.GenerateRequest) -> Iterator[FieldViolation]:
    for name in _UNSUPPORTED:
        if message.HasField(name):
            yield FieldViolation(name, "this server does not serve it")
    if message.extra_mm_inputs:
        yield FieldViolation("extra_mm_inputs", "this server does not serve it")
    if message.data_parallel_rank > 0:
        yield FieldViolation("data_parallel_rank", f"there is only rank 0, not {message.data_parallel_rank}")
    params = message.sampling_params
    if params.HasField("truncate_prompt_tokens"):
        yield FieldViolation("sampling_params.truncate_prompt_tokens", "cut the prompt: the gateway has its tokens")
    if params.include_stop_str_in_output:
        yield FieldViolation("sampling_params.include_stop_str_in_output", "a stop string is never part of the output")
    for name in ("logprobs", "prompt_logprobs"):
        if getattr(params, name) < 0:
            yield FieldViolation(f"sampling_params.{name}", "not all can be listed")
    for token in params.logit_bias:
        if token < 0:
            yield FieldViolation("sampling_params.logit_bias", f"{token} is not a token id")


def streamed(prompt: Sequence[int], update: Delta | Finished) -> Iterator[vllm.GenerateResponse]:
    """The messages for an update of a streamed request. The counts in a chunk are those of the chunk."""
    match update:
        case Delta():
            chunk = vllm.GenerateStreamChunk(
                token_ids=update.token_ids,
                prompt_tokens=len(prompt),
                completion_tokens=len(update.token_ids),
                index=update.index,
            )
            if update.logprobs:
                chunk.output_logprobs.CopyFrom(_output_logprobs(update.logprobs))
            if update.prompt_logprobs:
                chunk.input_logprobs.CopyFrom(_input_logprobs(prompt, update.prompt_logprobs))
            yield vllm.GenerateResponse(chunk=chunk)
        case Finished():
            yield vllm.GenerateResponse(complete=_complete(update))


class WholeResponse:
    """The messages of a request that is not streamed: each output in one message, at its end."""

    def __init__(self, prompt: Sequence[int], outputs: int) -> None:
        """``prompt`` is the prompt's token ids, ``outputs`` the number of outputs."""
        self._prompt = prompt
        self._tokens: list[list[int]] = [[] for _ in range(outputs)]
        self._logprobs: list[list[PositionLogprobs]] = [[] for _ in range(outputs)]
        self._prompt_logprobs: list[PositionLogprobs] = []

    def messages(self, update: Delta | Finished) -> Iterator[vllm.GenerateResponse]:
        """The messages for an update of the request."""
        match update:
            case Delta():
                self._tokens[update.index] += update.token_ids
                self._logprobs[update.index] += update.logprobs
                if not update.index:  # all outputs have the same prompt
                    self._prompt_logprobs += update.prompt_logprobs
            case Finished():
                complete = _complete(update)
                complete.output_ids.extend(self._tokens[update.index])
                if self._logprobs[update.index]:
                    complete.output_logprobs.CopyFrom(_output_logprobs(self._logprobs[update.index]))
                if self._prompt_logprobs:
                    complete.input_logprobs.CopyFrom(_input_logprobs(self._prompt, self._prompt_logprobs))
                yield vllm.GenerateResponse(complete=complete)


def _complete(end: Finished) -> vllm.GenerateComplete:
    complete = vllm.GenerateComplete(
        finish_reason=_FINISH[end.finish_reason],
        prompt_tokens=end.usage.prompt_tokens,
        completion_tokens=end.usage.completion_tokens,
        cached_tokens=end.usage.cached_tokens,
        index=end.index,
        spec_accepted_tokens=end.speculation.accepted,
        spec_draft_tokens=end.speculation.drafted,
    )
    match end.stop_reason:
        case int(token):
            complete.matched_token_id = token
        case str(text):
            complete.matched_stop_str = text
    return complete


def _output_logprobs(positions: Sequence[PositionLogprobs]) -> vllm.OutputLogProbs:
    return vllm.OutputLogProbs(
        token_logprobs=[position.chosen.logprob for position in positions],
        token_ids=[position.chosen.token_id for position in positions],
        top_logprobs=map(_top, positions),
    )


def _input_logprobs(prompt: Sequence[int], positions: Sequence[PositionLogprobs]) -> vllm.InputLogProbs:
    """The log-probabilities of a whole prompt. Its first token has none."""
    values = [vllm.InputTokenLogProb(value=position.chosen.logprob) for position in positions]
    return vllm.InputLogProbs(
        token_logprobs=[vllm.InputTokenLogProb(), *values],
        token_ids=prompt,
        top_logprobs=[vllm.TopLogProbs(), *map(_top, positions)],
    )


def _top(position: PositionLogprobs) -> vllm.TopLogProbs:
    return vllm.TopLogProbs(
        values=[top.logprob for top in position.top], token_ids=[top.token_id for top in position.top]
    )


def model_info(info: EngineInfo) -> vllm.GetModelInfoResponse:
    """The description of the served model."""
    return vllm.GetModelInfoResponse(
        model_path=info.model,
        is_generation=True,
        max_context_length=info.max_model_len,
        vocab_size=info.config.vocab_size,
        served_model_name=info.model,
        tokenizer_path=info.model,
        model_type=info.config.family,
        eos_token_ids=info.eos_token_ids,
        bos_token_id=info.config.bos_token_id or 0,
        max_req_input_len=info.max_model_len - 1,
    )


def server_info(
    info: EngineInfo, stats: EngineStats, uptime_s: float, last_request: float
) -> vllm.GetServerInfoResponse:
    """The description of the server and its activity."""
    return vllm.GetServerInfoResponse(
        active_requests=stats.running + stats.waiting,
        last_receive_timestamp=last_request,
        uptime_seconds=uptime_s,
        server_type="vllm-grpc",  # the protocol's name, by which the gateway chooses how to talk
        data_parallel_size=1,
        kv_cache_dtype="auto",
        block_size=info.block_size,
        model_dtype=info.dtype,
        max_num_seqs=info.max_num_seqs,
        constrained_decoding_start="first_token",
    )


def loads(info: EngineInfo, stats: EngineStats, tokens_per_s: float) -> vllm.GetLoadsResponse:
    """The engine's load, for GetLoads."""
    load = vllm.SchedulerLoad(
        num_running_reqs=stats.running,
        num_waiting_reqs=stats.waiting,
        num_total_reqs=stats.running + stats.waiting,
        num_used_tokens=_held_blocks(stats) * info.block_size,
        max_total_num_tokens=stats.total_blocks * info.block_size,
        token_usage=_usage(stats),
        gen_throughput=tokens_per_s,
        cache_hit_rate=_hit_rate(stats),
        utilization=stats.running / info.max_num_seqs,
        max_running_requests=info.max_num_seqs,
        num_waiting_uncached_tokens=stats.queued_tokens,
    )
    now = datetime.datetime.now(datetime.UTC).isoformat(timespec="milliseconds")
    return vllm.GetLoadsResponse(timestamp=now, version=__version__, dp_rank_count=1, loads=[load])


def engine_load(info: EngineInfo, stats: EngineStats, tokens_per_s: float, sample: int) -> common.EngineLoad:
    """The engine's load, as a record in the stream of cache events."""
    return common.EngineLoad(
        running_requests=stats.running,
        waiting_requests=stats.waiting,
        waiting_uncached_tokens=stats.queued_tokens,
        token_usage=_usage(stats),
        active_token_usage=_usage(stats),
        gen_throughput=tokens_per_s,
        max_running_requests=info.max_num_seqs,
        sample=sample,
        cache_hit_rate=_hit_rate(stats),
        num_used_tokens=_held_blocks(stats) * info.block_size,
        max_total_num_tokens=stats.total_blocks * info.block_size,
        speculative=common.EngineSpeculative(
            accept_length=stats.drafter.acceptance_length,
            accept_rate=stats.accepted_tokens / stats.drafted_tokens if stats.drafted_tokens else 0.0,
        ),
    )


def _held_blocks(stats: EngineStats) -> int:
    return stats.total_blocks - stats.free_blocks - stats.cached_blocks


def _usage(stats: EngineStats) -> float:
    return _held_blocks(stats) / stats.total_blocks if stats.total_blocks else 0.0


def _hit_rate(stats: EngineStats) -> float:
    return stats.prefix_hit_tokens / stats.prefix_query_tokens if stats.prefix_query_tokens else 0.0

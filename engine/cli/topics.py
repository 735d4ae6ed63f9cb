"""The options of the command line by topic, and the words that stand for their values in ``--help``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import get_args, get_origin

from pydantic.fields import FieldInfo

from draftline.engine.bench.load.config import LoadConfig
from draftline.engine.cli.connection import Connection
from draftline.engine.config import EngineConfig
from draftline.engine.options import Options, choices, without_none
from draftline.engine.params import Constraint, Reasoning, SamplingParams, Speculation
from draftline.engine.server.config import ServerConfig
from draftline.engine.training.config import TrainDraftConfig

TOPICS: Mapping[type[Options], Mapping[str, Sequence[str]]] = {
    EngineConfig: {
        "Model": (
            "model",
            "tokenizer",
            "chat_template",
            "tool_format",
            "load_format",
            "dtype",
            "quantization",
            "device",
            "tensor_parallel_size",
            "enforce_eager",
            "kernels",
            "constraint_cache",
        ),
        "Memory": (
            "max_model_len",
            "kv_cache_memory_gib",
            "kv_cache_dtype",
            "gpu_memory_utilization",
            "block_size",
            "prefix_caching",
        ),
        "Scheduling": (
            "max_num_seqs",
            "max_batched_tokens",
            "inter_token_target",
            "max_waiting",
            "max_waiting_tokens",
            "scheduling",
            "ageing_s",
            "default_seed",
            "log_steps",
        ),
        "Speculation": (
            "drafter",
            "draft_model",
            "draft_quantization",
            "draft_tensor_parallel_size",
            "draft_tokens",
            "draft_length",
            "ngram_entries",
            "synthetic_acceptance",
        ),
    },
    ServerConfig: {
        "Server": (
            "host",
            "port",
            "http_port",
            "served_model_name",
            "drain_timeout",
            "step_timeout",
            "engine_process",
            "data_parallel_size",
            "gateway",
        ),
        "Security": (
            "tls_cert",
            "tls_key",
            "tls_client_ca",
            "tokens",
            "insecure",
            "admin",
            "http_allowed_hosts",
            "http_allowed_origins",
        ),
        "Connections": (
            "max_request_mib",
            "max_streams",
            "max_sessions",
            "min_ping_interval",
            "keepalive",
            "stall_timeout",
        ),
        "Telemetry": (
            "metrics_port",
            "metrics_host",
            "otlp_endpoint",
            "profile_dir",
            "log_requests",
            "log_format",
            "log_level",
        ),
    },
    SamplingParams: {"Sampling": tuple(SamplingParams.model_fields)},
    Speculation: {"Speculation": tuple(Speculation.model_fields)},
    Constraint: {"Constraint": tuple(Constraint.model_fields)},
    Reasoning: {"Constraint": tuple(Reasoning.model_fields)},
    Connection: {"Connection": tuple(Connection.model_fields)},
    LoadConfig: {"Load": tuple(LoadConfig.model_fields)},
    TrainDraftConfig: {"Training": tuple(TrainDraftConfig.model_fields)},
}
"""The panels of each model's options in ``--help``, in their order."""

_VALUES: Mapping[str, str] = {
    "model": "NAME",
    "tokenizer": "NAME",
    "drafter": "NAME",
    "draft_model": "NAME",
    "device": "DEVICE",
    "quantization": "FORMAT",
    "draft_quantization": "FORMAT",
    "dtype": "DTYPE",
    "kv_cache_dtype": "DTYPE",
    "kv_cache_memory_gib": "GIB",
    "gpu_memory_utilization": "SHARE",
    "synthetic_acceptance": "SHARE",
    "ageing_s": "SECONDS",
    "inter_token_target": "SECONDS",
    "train_seconds": "SECONDS",
    "stop_after": "SECONDS",
    "drain_timeout": "SECONDS",
    "step_timeout": "SECONDS",
    "min_ping_interval": "SECONDS",
    "keepalive": "SECONDS",
    "stall_timeout": "SECONDS",
    "max_request_mib": "MIB",
    "host": "ADDRESS",
    "metrics_host": "ADDRESS",
    "otlp_endpoint": "URL",
    "port": "PORT",
    "http_port": "PORT",
    "http_allowed_hosts": "HOST",
    "http_allowed_origins": "ORIGIN",
    "served_model_name": "NAME",
    "metrics_port": "PORT",
    "profile_dir": "FOLDER",
    "tls_cert": "FILE",
    "tls_key": "FILE",
    "tls_client_ca": "FILE",
    "tokens": "FILE",
    "ca": "FILE",
    "client_cert": "FILE",
    "client_key": "FILE",
    "json_schema": "FILE|JSON",
    "grammar": "@FILE|TEXT",
    "chat_template": "FILE",
    "tool_format": "NAME",
    "structural_tag": "FILE|JSON",
    "regex": "REGEX",
    "stop_token_ids": "ID",
    "allowed_token_ids": "ID",
    "logit_bias": "ID=BIAS",
    "layers": "LAYER",
    "workload": "NAME",
    "prompt_len": "LENGTHS",
    "tool_len": "LENGTHS",
    "output_len": "LENGTHS",
    "think": "SECONDS",
    "ttft_limit": "SECONDS",
    "tpot_limit": "SECONDS",
    "e2e_limit": "SECONDS",
}
"""Values that a type alone does not describe."""


def topic(model: type[Options], name: str) -> str | None:
    """The panel of an option; None for a model without topics."""
    return next((title for title, names in TOPICS.get(model, {}).items() if name in names), None)


def value_name(name: str, field: FieldInfo) -> str | None:
    """The word for an option's value, as ``N`` in ``--max-num-seqs N``; None for a switch."""
    kind = without_none(field.annotation)
    if name in _VALUES:
        return _VALUES[name]
    if choices(kind):
        return name.rpartition("_")[2].upper()
    if get_origin(kind) is tuple:
        kind = get_args(kind)[0]
    return {bool: None, int: "N", float: "X", Path: "FILE"}.get(kind, "TEXT")  # type: ignore[call-overload,no-any-return]

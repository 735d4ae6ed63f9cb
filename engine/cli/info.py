"""``draftline info``: a model's shape, memory and limits, without generating."""

from __future__ import annotations

import json
import resource
import sys
from typing import Annotated

import typer
from google.protobuf.json_format import MessageToDict
from rich.console import Console
from rich.table import Table

from draftline.engine.cli.backend import connected, server_errors, started
from draftline.engine.cli.connection import Connection
from draftline.engine.config import EngineConfig
from draftline.engine.protocol import EngineInfo
from draftline.v1 import engine_pb2 as pb
from draftline.v1.engine_pb2_grpc import InferenceServiceStub


def info(
    as_json: Annotated[bool, typer.Option("--json", help="print JSON")] = False,
    server: Annotated[str | None, typer.Option(metavar="HOST:PORT", help="use a running server")] = None,
    *,
    engine: EngineConfig,
    connection: Connection,
) -> None:
    """Show a model's shape, memory and limits, without generating.

    The limits are those of an engine with the given options on this machine, or of a running server.

    **Examples**

    - `draftline info`
    - `draftline info --model ./Qwen3-0.6B --dtype bfloat16 --json`
    - `draftline info --server localhost:50051`
    """
    if server is None:
        connection.check_unset()
        with started(engine) as local:
            from draftline.engine.server.grpc.convert import model_response  # imports the engine's side of requests

            facts = _facts(model_response(local.info)) | _local_facts(local.info)
    else:
        with connected(server, engine, connection) as channel, server_errors():
            facts = _facts(InferenceServiceStub(channel).GetModel(pb.GetModelRequest()))
    if as_json:
        typer.echo(json.dumps(facts, indent=2))
        return
    table = Table(show_header=False, box=None)
    for name, value in facts.items():
        table.add_row(name.replace("_", " "), ", ".join(map(str, value)) if isinstance(value, list) else str(value))
    Console(soft_wrap=True).print(table)


def _facts(model: pb.GetModelResponse) -> dict[str, object]:
    facts = MessageToDict(model, preserving_proto_field_name=True, always_print_fields_with_no_presence=True)
    return facts | {"cache_tokens": model.cache_blocks * model.block_size}


def _local_facts(local: EngineInfo) -> dict[str, object]:
    """Facts that only an engine in this process can tell."""
    shape = local.config
    peak_kib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / (1024 if sys.platform == "darwin" else 1)
    return {
        "layers": shape.num_layers,
        "hidden_size": shape.hidden_size,
        "intermediate_size": shape.intermediate_size,
        "attention_heads": shape.num_heads,
        "key_value_heads": shape.num_kv_heads,
        "head_dim": shape.head_dim,
        "tied_embeddings": shape.tied_embeddings,
        "max_positions": shape.max_positions,
        "process_memory_peak_mib": round(peak_kib / 1024),
    }

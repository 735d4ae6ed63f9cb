"""Server reflection as grpc.reflection.v1 and v1alpha.

grpcio-reflection implements v1alpha only, and newer clients ask for v1 first. The two differ only in the name of the
package. So one servicer answers under both names, and the descriptor of v1 is a renamed copy of v1alpha's.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import grpc
import grpc.aio
from google.protobuf import descriptor_pool, text_format
from google.protobuf.descriptor import FileDescriptor
from google.protobuf.descriptor_pb2 import FileDescriptorProto
from grpc_reflection.v1alpha import reflection, reflection_pb2

V1 = "grpc.reflection.v1.ServerReflection"


def add_reflection(server: grpc.aio.Server, services: Sequence[str]) -> None:
    """Add reflection to ``server``. It describes itself and ``services``, whose descriptors are in the default pool."""
    _describe_v1()
    names = [*services, V1, reflection.SERVICE_NAME]
    pool: Any = _Pool()
    reflection.enable_server_reflection(names, server, pool)
    method = grpc.stream_stream_rpc_method_handler(
        reflection.aio.ReflectionServicer(names, pool).ServerReflectionInfo,
        request_deserializer=reflection_pb2.ServerReflectionRequest.FromString,
        response_serializer=reflection_pb2.ServerReflectionResponse.SerializeToString,
    )
    handler = grpc.method_handlers_generic_handler(V1, {"ServerReflectionInfo": method})
    server.add_generic_rpc_handlers((handler,))


class _Pool:
    """The default pool, in which methods are symbols too, as the reflection protocol has it."""

    def __getattr__(self, name: str) -> Any:
        return getattr(descriptor_pool.Default(), name)

    def FindFileContainingSymbol(self, symbol: str) -> FileDescriptor:
        pool = descriptor_pool.Default()
        try:
            return pool.FindFileContainingSymbol(symbol)
        except KeyError:
            service, _, method = symbol.rpartition(".")
            return pool.FindServiceByName(service).methods_by_name[method].containing_service.file


def _describe_v1() -> None:
    """Add the descriptor of v1 to the default pool, unless another package already has."""
    pool = descriptor_pool.Default()
    try:
        pool.FindServiceByName(V1)
    except KeyError:
        v1alpha = FileDescriptorProto()
        reflection_pb2.DESCRIPTOR.CopyToProto(v1alpha)
        v1 = text_format.Parse(text_format.MessageToString(v1alpha).replace("v1alpha", "v1"), FileDescriptorProto())
        v1.options.ClearField("deprecated")
        pool.Add(v1)

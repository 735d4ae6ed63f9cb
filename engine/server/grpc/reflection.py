"""Server reflection as grpc.reflection.v1 and v1alpha.

grpcio-reflection speaks v1alpha only, which newer clients no longer ask for first. The two differ in nothing but the
package's name, so the same servicer answers under both, and v1's descriptor is v1alpha's with the name changed.
"""

from __future__ import annotations

from collections.abc import Sequence

import grpc
import grpc.aio
from google.protobuf import descriptor_pool, text_format
from google.protobuf.descriptor_pb2 import FileDescriptorProto
from grpc_reflection.v1alpha import reflection, reflection_pb2

V1 = "grpc.reflection.v1.ServerReflection"


def add_reflection(server: grpc.aio.Server, services: Sequence[str]) -> None:
    """Let ``server`` describe ``services``, whose descriptors are in the default pool, and reflection itself."""
    _describe_v1()
    names = [*services, V1, reflection.SERVICE_NAME]
    reflection.enable_server_reflection(names, server)
    method = grpc.stream_stream_rpc_method_handler(
        reflection.aio.ReflectionServicer(names).ServerReflectionInfo,
        request_deserializer=reflection_pb2.ServerReflectionRequest.FromString,
        response_serializer=reflection_pb2.ServerReflectionResponse.SerializeToString,
    )
    handler = grpc.method_handlers_generic_handler(V1, {"ServerReflectionInfo": method})
    server.add_generic_rpc_handlers((handler,))


def _describe_v1() -> None:
    """Put v1's descriptor into the default pool, unless some other package already has."""
    pool = descriptor_pool.Default()
    try:
        pool.FindServiceByName(V1)
    except KeyError:
        v1alpha = FileDescriptorProto()
        reflection_pb2.DESCRIPTOR.CopyToProto(v1alpha)
        v1 = text_format.Parse(text_format.MessageToString(v1alpha).replace("v1alpha", "v1"), FileDescriptorProto())
        v1.options.ClearField("deprecated")
        pool.Add(v1)

"""Reflection: names of services, and the files that declare them, for clients such as `grpcurl`."""

from collections.abc import Sequence

from google.protobuf import descriptor_pool
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass
from grpc_reflection.v1alpha import reflection_pb2

from app.core.server.http.context import RequestContext
from app.core.server.http.rpc import RpcCode
from app.extensions.grpc.messages import Proto

SERVICE = "vllm.grpc.engine.VllmEngine"
HEALTH = "grpc.health.v1.Health"
REFLECTIONS = ("grpc.reflection.v1.ServerReflection", "grpc.reflection.v1alpha.ServerReflection")
"""The same messages under two names: newer clients try the first, and then the second."""

reflection: Proto = reflection_pb2
POOL: Proto = descriptor_pool.Default()


def input_type(service: str, method: str) -> type[Message]:
    """Returns the message that a method's service declares as its input."""
    descriptor = POOL.FindServiceByName(service.replace("v1.ServerR", "v1alpha.ServerR"))
    message_type: type[Message] = GetMessageClass(descriptor.methods_by_name[method].input_type)
    return message_type


def reflect(services: Sequence[str], request: Proto, context: RequestContext) -> Message:
    """Answers one question: names of `services`, or the files that declare a symbol or a file."""
    kind = request.WhichOneof("message_request")
    name = getattr(request, kind or "host")
    response = reflection.ServerReflectionResponse(
        valid_host=request.host, original_request=request
    )
    if kind == "list_services":
        for service in services:
            response.list_services_response.service.add(name=service)
        return response
    files: dict[str, bytes] = {}
    try:
        _add_file(_find_file(kind, name), files)
        response.file_descriptor_response.file_descriptor_proto.extend(files.values())
    except KeyError:
        response.error_response.error_code = int(RpcCode.NOT_FOUND)
        response.error_response.error_message = "This is not known here."
    return response


def _find_file(kind: str, name: str) -> Proto:
    """Returns a file by its name, or the file that declares a symbol.

    Raises:
        KeyError: without such a file.
    """
    if kind == "file_by_filename":
        return POOL.FindFileByName(name)
    if kind != "file_containing_symbol":
        raise KeyError(kind)  # extensions are not used here
    try:
        return POOL.FindFileContainingSymbol(name)
    except KeyError:  # perhaps a method of a service
        return POOL.FindServiceByName(name.rpartition(".")[0]).file


def _add_file(file: Proto, files: dict[str, bytes]) -> None:
    """Adds a file and all its imports by their names."""
    files[file.name] = file.serialized_pb
    for imported in file.dependencies:
        _add_file(imported, files)

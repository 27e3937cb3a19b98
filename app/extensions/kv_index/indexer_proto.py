"""Messages of `indexer.v1.IndexerService`, the gRPC interface of llm-d's indexer."""

from typing import Any, TypeAlias

from google.protobuf import descriptor_pool
from google.protobuf.descriptor_pb2 import FieldDescriptorProto, FileDescriptorProto
from google.protobuf.message_factory import GetMessageClass

Proto: TypeAlias = Any
"""A message or a class of protobuf, which ships no types."""

PACKAGE = "indexer.v1"
GET_POD_SCORES = f"{PACKAGE}.IndexerService/GetPodScores"
STRING = FieldDescriptorProto.TYPE_STRING
DOUBLE = FieldDescriptorProto.TYPE_DOUBLE
INT32 = FieldDescriptorProto.TYPE_INT32
OPTIONAL = FieldDescriptorProto.LABEL_OPTIONAL
REPEATED = FieldDescriptorProto.LABEL_REPEATED


def _declare() -> FileDescriptorProto:
    """Returns the declaration of the service, with llm-d's names and numbers of fields."""
    file = FileDescriptorProto(name="api/indexerpb/indexer.proto", package=PACKAGE, syntax="proto3")
    request = file.message_type.add(name="GetPodScoresRequest")
    request.field.add(name="prompt", number=1, type=STRING, label=OPTIONAL)
    request.field.add(name="model_name", number=2, type=STRING, label=OPTIONAL)
    request.field.add(name="pod_identifiers", number=3, type=STRING, label=REPEATED)
    response = file.message_type.add(name="GetPodScoresResponse")
    response.field.add(
        name="scores",
        number=1,
        type=FieldDescriptorProto.TYPE_MESSAGE,
        label=REPEATED,
        type_name=f".{PACKAGE}.PodScore",
    )
    score = file.message_type.add(name="PodScore")
    score.field.add(name="pod", number=1, type=STRING, label=OPTIONAL)
    score.field.add(name="score", number=2, type=DOUBLE, label=OPTIONAL)
    rank = score.field.add(
        name="data_parallel_rank", number=3, type=INT32, label=OPTIONAL, proto3_optional=True
    )
    score.oneof_decl.add(name="_data_parallel_rank")
    rank.oneof_index = 0
    service = file.service.add(name="IndexerService")
    service.method.add(
        name="GetPodScores",
        input_type=f".{PACKAGE}.GetPodScoresRequest",
        output_type=f".{PACKAGE}.GetPodScoresResponse",
    )
    return file


_FILE: Proto = descriptor_pool.Default().AddSerializedFile(_declare().SerializeToString())
GetPodScoresRequest: Proto = GetMessageClass(_FILE.message_types_by_name["GetPodScoresRequest"])
GetPodScoresResponse: Proto = GetMessageClass(_FILE.message_types_by_name["GetPodScoresResponse"])

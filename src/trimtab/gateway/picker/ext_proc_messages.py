"""Messages of Envoy's external processing (envoy.service.ext_proc.v3) and of gRPC health checks.

Only the fields that the picker uses are declared; protobuf skips the others. The package `xds-protos` has all
of Envoy's messages, but installs files over those of `opentelemetry-proto` and `googleapis-common-protos`.

*Source*: Envoy's `external_processor.proto`, `base.proto` and `processing_mode.proto` of 1.40.
"""

from __future__ import annotations

from typing import Any, Final

from google.protobuf import descriptor_pb2, duration_pb2, struct_pb2, wrappers_pb2
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message_factory import GetMessageClass

_PACKAGE: Final = "trimtab.ext_proc"
_FIELD: Final = descriptor_pb2.FieldDescriptorProto
_SCALARS: Final = {
    "string": _FIELD.TYPE_STRING,
    "bytes": _FIELD.TYPE_BYTES,
    "bool": _FIELD.TYPE_BOOL,
    "enum": _FIELD.TYPE_INT32,  # the same on the wire
}
_STRUCT, _DURATION = ".google.protobuf.Struct", ".google.protobuf.Duration"

# Message → its fields: name, number, type. `[]` = repeated, `{}` = a map from strings, `|` = of the oneof.
_MESSAGES: Final[dict[str, tuple[tuple[str, int, str], ...]]] = {
    "HeaderValue": (("key", 1, "string"), ("value", 2, "string"), ("raw_value", 3, "bytes")),
    "HeaderMap": (("headers", 1, "[]HeaderValue"),),
    "HttpHeaders": (("headers", 1, "HeaderMap"), ("end_of_stream", 3, "bool")),
    "HttpBody": (("body", 1, "bytes"), ("end_of_stream", 2, "bool")),
    "HttpTrailers": (("trailers", 1, "HeaderMap"),),
    "Metadata": (("filter_metadata", 1, "{}" + _STRUCT),),
    "ProtocolConfiguration": (("request_body_mode", 1, "enum"), ("response_body_mode", 2, "enum")),
    "ProcessingRequest": (
        ("request_headers", 2, "|HttpHeaders"),
        ("response_headers", 3, "|HttpHeaders"),
        ("request_body", 4, "|HttpBody"),
        ("response_body", 5, "|HttpBody"),
        ("request_trailers", 6, "|HttpTrailers"),
        ("response_trailers", 7, "|HttpTrailers"),
        ("metadata_context", 8, "Metadata"),
        ("attributes", 9, "{}" + _STRUCT),
        ("protocol_config", 11, "ProtocolConfiguration"),
    ),
    "HeaderValueOption": (("header", 1, "HeaderValue"), ("append_action", 3, "enum")),
    "HeaderMutation": (("set_headers", 1, "[]HeaderValueOption"), ("remove_headers", 2, "[]string")),
    "StreamedBodyResponse": (("body", 1, "bytes"), ("end_of_stream", 2, "bool")),
    "BodyMutation": (("body", 1, "|bytes"), ("streamed_response", 3, "|StreamedBodyResponse")),
    "CommonResponse": (("header_mutation", 2, "HeaderMutation"), ("body_mutation", 3, "BodyMutation")),
    "HeadersResponse": (("response", 1, "CommonResponse"),),
    "BodyResponse": (("response", 1, "CommonResponse"),),
    "TrailersResponse": (("header_mutation", 1, "HeaderMutation"),),
    "HttpStatus": (("code", 1, "enum"),),
    "ImmediateResponse": (
        ("status", 1, "HttpStatus"),
        ("headers", 2, "HeaderMutation"),
        ("body", 3, "bytes"),
        ("details", 5, "string"),
    ),
    "ProcessingResponse": (
        ("request_headers", 1, "|HeadersResponse"),
        ("response_headers", 2, "|HeadersResponse"),
        ("request_body", 3, "|BodyResponse"),
        ("response_body", 4, "|BodyResponse"),
        ("request_trailers", 5, "|TrailersResponse"),
        ("response_trailers", 6, "|TrailersResponse"),
        ("immediate_response", 7, "|ImmediateResponse"),
        ("dynamic_metadata", 8, _STRUCT),
        ("override_message_timeout", 10, _DURATION),
    ),
}


def _declare(message: Any, name: str, number: int, kind: str) -> None:
    field = message.field.add(name=name, number=number, label=_FIELD.LABEL_OPTIONAL)
    if kind.startswith("[]"):
        field.label, kind = _FIELD.LABEL_REPEATED, kind[2:]
    elif kind.startswith("|"):
        if not message.oneof_decl:
            message.oneof_decl.add(name="one")
        field.oneof_index, kind = 0, kind[1:]
    elif kind.startswith("{}"):
        entry = message.nested_type.add(name=f"{name.title().replace('_', '')}Entry")
        entry.options.map_entry = True
        _declare(entry, "key", 1, "string")
        _declare(entry, "value", 2, kind[2:])
        field.label, kind = _FIELD.LABEL_REPEATED, f".{_PACKAGE}.{message.name}.{entry.name}"
    if kind in _SCALARS:
        field.type = _SCALARS[kind]
    else:
        field.type = _FIELD.TYPE_MESSAGE
        field.type_name = kind if kind.startswith(".") else f".{_PACKAGE}.{kind}"


def _pool() -> DescriptorPool:
    pool = DescriptorPool()
    file = descriptor_pb2.FileDescriptorProto(name="ext_proc.proto", package=_PACKAGE, syntax="proto3")
    for module in (struct_pb2, duration_pb2):
        pool.AddSerializedFile(module.DESCRIPTOR.serialized_pb)
        file.dependency.append(module.DESCRIPTOR.name)
    for name, fields in _MESSAGES.items():
        message = file.message_type.add(name=name)
        for field in fields:
            _declare(message, *field)
    pool.AddSerializedFile(file.SerializeToString())
    return pool


_POOL: Final = _pool()


def _message(name: str) -> Any:
    return GetMessageClass(_POOL.FindMessageTypeByName(f"{_PACKAGE}.{name}"))


ProcessingRequest: Final = _message("ProcessingRequest")
ProcessingResponse: Final = _message("ProcessingResponse")

# A health check's request is a string, its answer a number.
HealthCheckRequest: Final = wrappers_pb2.StringValue
HealthCheckResponse: Final = wrappers_pb2.Int32Value
SERVING: Final = 1
NOT_SERVING: Final = 2

# Modes in which Envoy sends a body.
BODY_NONE: Final = 0
BODY_BUFFERED: Final = 2
BODY_FULL_DUPLEX: Final = 4

"""KServe's inference protocol (v2) over gRPC: a text in, a text out, by way of ``Generate``."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Any

import grpc

from headway.errors import Code, HeadwayError, invalid
from protos import common_pb2, gateway_pb2, inference_pb2, inference_pb2_grpc
from services.gateway.grpc_edge import GatewayEdge
from services.gateway.served_model import ServedModels
from services.runtime.telemetry import package_version

Context = grpc.aio.ServicerContext[Any, Any]
Tensor = inference_pb2.ModelInferResponse.InferOutputTensor

INPUT, OUTPUT, REASONING = "text_input", "text_output", "reasoning_output"
OUTPUTS = (OUTPUT, REASONING)
VERSION = "1"
SAMPLING_OPTIONS = tuple(
    name
    for name in gateway_pb2.SamplingOptions.DESCRIPTOR.fields_by_name
    if name != "num_logprobs"  # no output has them
)
OPTIONS = (
    *("disable_thinking", "disable_pacing", "thinking_token_budget"),
    *("service_class", "priority", "cache_salt", "session_id", "session_end", "max_turns"),
)
_SEQUENCE = {"sequence_id": "session_id", "sequence_end": "session_end"}
"""Triton's parameters of a sequence, and ours."""
_CHAT, _STOP = "chat", "stop"
_OF_TRITON = ("triton_enable_empty_final_response", "sequence_start")
_ENDS = {common_pb2.FINISH_REASON_STOP: "stop", common_pb2.FINISH_REASON_LENGTH: "length"}
_LENGTH_BYTES = 4


class InferenceEdge(inference_pb2_grpc.GRPCInferenceServiceServicer):
    """The service for KServe's clients.

    ``is_ready``: whether requests of a model can be served, of any for "".
    """

    def __init__(
        self, edge: GatewayEdge, models: ServedModels, is_ready: Callable[[str], bool]
    ) -> None:
        self._edge = edge
        self._models = models
        self._is_ready = is_ready

    async def ServerLive(  # noqa: N802 (the proto's names, here and below)
        self, request: inference_pb2.ServerLiveRequest, context: Context
    ) -> inference_pb2.ServerLiveResponse:
        """Answer as long as the process lives; needs no key."""
        return inference_pb2.ServerLiveResponse(live=True)

    async def ServerReady(  # noqa: N802
        self, request: inference_pb2.ServerReadyRequest, context: Context
    ) -> inference_pb2.ServerReadyResponse:
        """Say whether requests can be served; needs no key."""
        return inference_pb2.ServerReadyResponse(ready=self._is_ready(""))

    async def ModelReady(  # noqa: N802
        self, request: inference_pb2.ModelReadyRequest, context: Context
    ) -> inference_pb2.ModelReadyResponse:
        """Say whether requests of this model can be served; needs no key."""
        is_ready = request.name in self._models and request.version in ("", VERSION)
        is_ready = is_ready and self._is_ready(self._models.find(request.name).name)
        return inference_pb2.ModelReadyResponse(ready=is_ready)

    async def ServerMetadata(  # noqa: N802
        self, request: inference_pb2.ServerMetadataRequest, context: Context
    ) -> inference_pb2.ServerMetadataResponse:
        """Return the name and the release."""
        self._edge.check_key(context)
        return inference_pb2.ServerMetadataResponse(name="headway", version=package_version())

    async def ModelMetadata(  # noqa: N802
        self, request: inference_pb2.ModelMetadataRequest, context: Context
    ) -> inference_pb2.ModelMetadataResponse:
        """Return the tensors of the model; NOT_FOUND for another."""
        self._edge.check_key(context)
        served = self._models.names
        if request.name not in self._models or request.version not in ("", VERSION):
            message = f"model {request.name!r} is not served here; this gateway serves "
            message += f"{', '.join(map(repr, served))}, version {VERSION}"
            raise HeadwayError(Code.NOT_FOUND, message)
        text = inference_pb2.ModelMetadataResponse.TensorMetadata
        return inference_pb2.ModelMetadataResponse(
            name=request.name,
            versions=[VERSION],
            platform="headway",
            inputs=[text(name=INPUT, datatype="BYTES", shape=[1])],
            outputs=[text(name=name, datatype="BYTES", shape=[1]) for name in OUTPUTS],
        )

    async def ModelInfer(  # noqa: N802
        self, request: inference_pb2.ModelInferRequest, context: Context
    ) -> inference_pb2.ModelInferResponse:
        """Answer with the whole text."""
        text, reasoning, request_id = "", "", ""
        asked = Inference.read(request)
        asked.call.disable_pacing = True  # nobody reads before the end
        async with aclosing(self._edge.replies(asked.call, context, request.id)) as replies:
            async for reply in replies:
                request_id = request_id or reply.request_id
                text += reply.text
                reasoning += reply.reasoning_text
        reply.text, reply.reasoning_text = text, reasoning
        return asked.answer(reply, request_id)

    async def ModelStreamInfer(  # noqa: N802
        self, requests: AsyncIterator[inference_pb2.ModelInferRequest], context: Context
    ) -> AsyncIterator[inference_pb2.ModelStreamInferResponse]:
        """Answer each request with its text as it comes; a refusal ends that request alone."""
        self._edge.check_key(context)
        async for request in requests:
            try:
                async with aclosing(self._stream(request, context)) as answers:
                    async for answer in answers:
                        yield inference_pb2.ModelStreamInferResponse(infer_response=answer)
            except HeadwayError as error:
                ended = inference_pb2.ModelStreamInferResponse(error_message=error.message)
                ended.infer_response.id = request.id
                ended.infer_response.model_name = request.model_name
                yield ended

    async def _stream(
        self, request: inference_pb2.ModelInferRequest, context: Context
    ) -> AsyncGenerator[inference_pb2.ModelInferResponse]:
        asked = Inference.read(request)
        request_id = ""
        async with aclosing(self._edge.replies(asked.call, context, request.id)) as replies:
            async for reply in replies:
                request_id = request_id or reply.request_id
                answer = asked.answer(reply, request_id)
                answer.parameters["triton_final_response"].bool_param = bool(reply.finish_reason)
                yield answer


@dataclass(frozen=True, slots=True)
class Inference:
    """A request as ``Generate`` knows it, and the form of its answers."""

    call: gateway_pb2.GenerateRequest
    request: inference_pb2.ModelInferRequest
    outputs: Sequence[str] = field(default=OUTPUTS)

    @classmethod
    def read(cls, request: inference_pb2.ModelInferRequest) -> Inference:
        """Read a request; INVALID_ARGUMENT names what has to change."""
        if request.model_version not in ("", VERSION):
            raise invalid("model_version", request.model_version, f"{VERSION}, or left out")
        for wanted in request.outputs:
            if wanted.name not in OUTPUTS or wanted.parameters:
                refused = wanted.name if wanted.name not in OUTPUTS else dict(wanted.parameters)
                limit = f"one of {', '.join(OUTPUTS)}, without parameters"
                raise invalid("outputs", refused, limit)
        names = tuple(dict.fromkeys(wanted.name for wanted in request.outputs))
        return cls(_read_call(request), request, names or OUTPUTS)

    def answer(
        self, reply: gateway_pb2.GenerateReply, request_id: str
    ) -> inference_pb2.ModelInferResponse:
        """Return a reply in the contract's words; texts are raw where the request's was."""
        response = inference_pb2.ModelInferResponse(
            model_name=self.call.model, model_version=VERSION, id=self.request.id
        )
        for name in self.outputs:
            text = (reply.text if name == OUTPUT else reply.reasoning_text).encode()
            tensor = response.outputs.add(name=name, datatype="BYTES", shape=[1])
            if self.request.raw_input_contents:
                response.raw_output_contents.append(_length(text) + text)
            else:
                tensor.contents.bytes_contents.append(text)
        if reply.finish_reason:
            said, usage = response.parameters, reply.usage
            said["request_id"].string_param = request_id
            said["finish_reason"].string_param = _ENDS[reply.finish_reason]
            said["prompt_tokens"].int64_param = usage.prompt_tokens
            said["completion_tokens"].int64_param = usage.completion_tokens
            said["reasoning_tokens"].int64_param = usage.reasoning_tokens
        return response


def _read_call(request: inference_pb2.ModelInferRequest) -> gateway_pb2.GenerateRequest:
    call, text = gateway_pb2.GenerateRequest(model=request.model_name), _text(request)
    given = {name: _value(said) for name, said in request.parameters.items()}
    for name in _OF_TRITON:  # the last answer of a stream bears its mark anyway
        given.pop(name, None)
    for theirs, ours in _SEQUENCE.items():
        if theirs in given:
            given.setdefault(ours, given.pop(theirs))
    if isinstance(given.get("session_id"), int):
        given["session_id"] = str(given["session_id"])
    if given.pop(_CHAT, False):
        call.chat.messages.add(role="user", content=text)
    else:
        call.prompt = text
    for name, value in given.items():
        if name not in (*SAMPLING_OPTIONS, *OPTIONS, _STOP):
            known = ", ".join((_CHAT, _STOP, *OPTIONS, *SAMPLING_OPTIONS))
            raise invalid("parameters", name, f"one of {known}")
        try:
            if name == _STOP:
                call.stop.append(value)
            else:
                setattr(call.sampling if name in SAMPLING_OPTIONS else call, name, value)
        except (TypeError, ValueError) as error:
            raise invalid(name, value, f"of its field's type ({error})") from error
    return call


def _text(request: inference_pb2.ModelInferRequest) -> str:
    """Return the only input's only text."""
    inputs, raw = request.inputs, request.raw_input_contents
    if [each.name for each in inputs] != [INPUT]:
        names = [each.name for each in inputs]
        raise invalid("inputs", names, f"{INPUT} alone; options are parameters of the request")
    tensor = inputs[0]
    if tensor.datatype != "BYTES" or any(size != 1 for size in tensor.shape):
        raise invalid(INPUT, f"{tensor.datatype} {[*tensor.shape]}", "BYTES of shape [1]")
    if tensor.parameters:
        raise invalid(INPUT, sorted(tensor.parameters), "a tensor without parameters")
    texts = [_unpacked(each) for each in raw] or [*tensor.contents.bytes_contents]
    if len(texts) != 1:
        raise invalid(INPUT, f"{len(texts)} texts", "one text")
    try:
        return texts[0].decode()
    except UnicodeDecodeError as error:
        raise invalid(INPUT, texts[0][:40], f"UTF-8 ({error.reason})") from error


def _unpacked(raw: bytes) -> bytes:
    text = raw[_LENGTH_BYTES:]
    if raw[:_LENGTH_BYTES] != _length(text):
        raise invalid(INPUT, raw[:40], "one text behind its length in four bytes, little-endian")
    return text


def _length(text: bytes) -> bytes:
    return len(text).to_bytes(_LENGTH_BYTES, "little")


def _value(said: inference_pb2.InferParameter) -> Any:
    kind = said.WhichOneof("parameter_choice")
    return None if kind is None else getattr(said, kind)

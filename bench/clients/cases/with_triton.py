"""Cases of Triton's client, over KServe's protocol: on the cluster's gRPC port, HTTP's plus one."""

from __future__ import annotations

import queue
from typing import Any
from urllib.parse import urlsplit

import numpy as np
import tritonclient.grpc as triton

from .asked import SECONDS, SUM, TOTAL, At, cases


def client(at: At) -> Any:
    """Return the client."""
    url = urlsplit(at.url)
    return triton.InferenceServerClient(f"{url.hostname}:{(url.port or 80) + 1}")


def asked(text: str) -> list[Any]:
    """Return the input tensor."""
    tensor = triton.InferInput("text_input", [1], "BYTES")
    tensor.set_data_from_numpy(np.array([text.encode()], dtype=object))
    return [tensor]


def text_of(result: Any, name: str = "text_output") -> str:
    """Return one text of a result."""
    return str(result.as_numpy(name)[0].decode())


def health(at: At) -> None:
    made = client(at)
    assert made.is_server_live()
    assert made.is_server_ready()
    assert made.is_model_ready(at.model)


def metadata(at: At) -> None:
    made = client(at)
    assert made.get_server_metadata().name == "headway"
    assert made.get_model_metadata(at.model).inputs[0].name == "text_input"


def infer(at: At) -> None:
    options = {"chat": True, "temperature": 0}
    reply = client(at).infer(at.model, asked(SUM), parameters=options, client_timeout=SECONDS)
    assert text_of(reply) == TOTAL
    assert text_of(reply, "reasoning_output")


def stream(at: At) -> None:
    came: queue.Queue[tuple[Any, Any]] = queue.Queue()
    made = client(at)
    made.start_stream(callback=lambda result, error: came.put((result, error)))
    made.async_stream_infer(at.model, asked(SUM), parameters={"chat": True, "temperature": 0})
    text, is_final = "", False
    while not is_final:
        result, error = came.get(timeout=SECONDS)
        assert error is None, error
        text += text_of(result)
        is_final = result.get_response().parameters["triton_final_response"].bool_param
    made.stop_stream()
    assert text == TOTAL


def a_model_that_is_not_there(at: At) -> None:
    try:
        client(at).infer("nobody", asked(SUM), client_timeout=SECONDS)
    except triton.InferenceServerException as error:
        assert error.status() == "StatusCode.NOT_FOUND", error
    else:
        raise AssertionError("it was answered")


CASES = cases(health, metadata, infer, stream, a_model_that_is_not_there)

"""Checks a checkpoint before anything is started: no torch, no weights, only its config.json.

``from services.worker.engine.model.check import check_model``
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from headway.errors import Code, HeadwayError
from services.worker.engine.model.supported import refuse_unsupported

HUB_TIMEOUT = 5.0


def check_model(model: str) -> None:
    """Raise HeadwayError, one sentence, unless ``model`` is a checkpoint that workers can serve.

    ``model`` is a folder or a hub id. A hub id that is not in the local cache is looked up on the
    hub, for at most ``HUB_TIMEOUT`` seconds. NOT_FOUND: there is no such checkpoint.
    FAILED_PRECONDITION: its family or its attention is not supported.
    """
    text = _config_text(model)
    try:
        config: Any = json.loads(text)
    except ValueError as error:
        raise _not_found(model, f"its config.json is not JSON ({error})") from error
    if not isinstance(config, dict):
        raise _not_found(model, "its config.json is not an object")
    refuse_unsupported(config)


def _config_text(model: str) -> bytes:
    folder = Path(model).expanduser()
    if not folder.is_dir():
        if model.startswith(("/", ".", "~")):  # no hub id, and what asks the hub is slow to import
            raise _not_found(model, "no folder of that name exists")
        return _text_of_hub(model)
    try:
        return (folder / "config.json").read_bytes()
    except OSError as error:
        raise _unreadable(model, error) from error


def _text_of_hub(model: str) -> bytes:
    from huggingface_hub import try_to_load_from_cache  # slow to import, and a folder needs none
    from huggingface_hub.errors import HFValidationError

    try:
        cached = try_to_load_from_cache(model, "config.json")
        return Path(cached).read_bytes() if isinstance(cached, str) else _download(model)
    except HFValidationError as error:
        raise _not_found(model, "no folder of that name exists") from error
    except OSError as error:
        raise _unreadable(model, error) from error


def _download(model: str) -> bytes:
    import httpx
    from huggingface_hub import constants, get_token, hf_hub_url

    url = hf_hub_url(model, "config.json", endpoint=constants.ENDPOINT)
    token = get_token()
    headers = {"authorization": f"Bearer {token}"} if token else {}
    try:
        answer = httpx.get(url, headers=headers, timeout=HUB_TIMEOUT, follow_redirects=True)
    except httpx.HTTPError as error:
        raise _not_found(
            model, "no folder of that name exists, and the hub is not reachable"
        ) from error
    if answer.status_code != httpx.codes.OK:
        raise _not_found(model, f"the hub answers with status {answer.status_code}")
    return answer.content


def _unreadable(model: str, error: OSError) -> HeadwayError:
    return _not_found(model, f"{error.filename} cannot be read ({error.strerror})")


def _not_found(model: str, why: str) -> HeadwayError:
    message = f"{model!r} is neither a folder nor a hub id with a known checkpoint: {why}"
    return HeadwayError(Code.NOT_FOUND, message, param="model")

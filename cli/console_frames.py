"""The console's stream, read in the terminal: frames as the page has them."""

from __future__ import annotations

import json
import os
from collections.abc import AsyncIterator, Mapping
from typing import Any

import httpx

from bench.serve.client import Endpoint, error_text
from cli.options import REFUSALS
from headway.console.patch import apply_patch
from headway.console.recent import COLUMNS
from headway.errors import Code, HeadwayError

Json = dict[str, Any]
_PATIENCE = 30.0  # seconds without a frame


async def frames(
    url: str, api_key: str = "", query: Mapping[str, str] | None = None
) -> AsyncIterator[Json]:
    """Yield the frames of a gateway's console; HeadwayError where it shows none."""
    Endpoint.parse(url)  # refuses what is no http address
    base = (url if "://" in url else f"http://{url}").rstrip("/").removesuffix("/v1")
    key = api_key or os.environ.get("HEADWAY_API_KEY", "")
    headers = {"authorization": f"Bearer {key}"} if key else {}
    try:
        async with (
            httpx.AsyncClient(base_url=base, headers=headers, timeout=_PATIENCE) as client,
            client.stream("GET", "/console/stream", params=dict(query or {})) as response,
        ):
            if response.status_code != httpx.codes.OK:
                said = error_text(await response.aread())
                code = REFUSALS.get(response.status_code, Code.UNAVAILABLE)
                raise HeadwayError(code, f"{base}: {said}")
            async for frame in _read(response):
                yield frame
    except (httpx.HTTPError, ValueError) as error:
        message = f"{base} does not answer as a gateway's console does ({error!r}): give its --url"
        raise HeadwayError(Code.UNAVAILABLE, message) from error


async def _read(response: httpx.Response) -> AsyncIterator[Json]:
    frame: Json = {}
    event = ""
    async for line in response.aiter_lines():
        name, _, value = line.partition(": ")
        if name == "event":
            event = value
        elif name == "data" and event in ("state", "patch"):
            data = json.loads(value)
            frame = data if event == "state" else apply_patch(frame, data)
            yield frame


def figures(frame: Json) -> dict[str, float | None]:
    """Return the newest row of the history by its columns' names, {} before the first."""
    point = frame.get("point") or ()
    return dict(zip(COLUMNS, point, strict=False))

"""The tokens around a model's reasoning, as its tokenizer names them."""

from __future__ import annotations

from pathlib import Path

from headway.core.reasoning import Markers, marker_ids
from headway.errors import Code, HeadwayError


def find_markers(model: str, end: str = "", start: str = "") -> Markers:
    """Return the tokens around a model's reasoning; none if it does not reason.

    ``model``: a folder or a hub id. ``end`` and ``start``: the texts if they are not ``</think>``
    and ``<think>``; each may be several tokens. With a custom ``end`` the start is unknown unless
    given. HeadwayError if a text is given and the model has no fast tokenizer, or for a start
    without an end.
    """
    from tokenizers import Tokenizer

    file = tokenizer_file(model)
    if file is None:
        if end or start:
            message = f"{model} has no tokenizer.json to find {end or start!r} in"
            param = "end_of_reasoning" if end else "start_of_reasoning"
            raise HeadwayError(Code.INVALID_ARGUMENT, message, param=param)
        return Markers()
    tokenizer = Tokenizer.from_file(str(file))
    added = {t.content: i for i, t in tokenizer.get_added_tokens_decoder().items()}
    pair = marker_ids(added)
    ids = [tuple(tokenizer.encode(text, add_special_tokens=False).ids) for text in (end, start)]
    if not end:
        if pair is None and start:
            message = "start_of_reasoning is given and end_of_reasoning is not: give both"
            raise HeadwayError(Code.INVALID_ARGUMENT, message, param="start_of_reasoning")
        return Markers() if pair is None else Markers((pair[1],), ids[1] or (pair[0],))
    own_start = (pair[0],) if pair is not None and ids[0] == (pair[1],) else ()
    return Markers(ids[0], ids[1] or own_start)


def tokenizer_file(model: str) -> Path | None:
    """Return the ``tokenizer.json`` of a model's folder or hub id, None without one."""
    return model_file(model, "tokenizer.json")


def model_file(model: str, name: str) -> Path | None:
    """Return a file of a model's folder or hub id, None without one."""
    folder = Path(model).expanduser()
    if folder.is_dir():
        file = folder / name
        return file if file.is_file() else None
    from huggingface_hub import hf_hub_download  # slow to import, needed for hub ids only

    try:
        return Path(hf_hub_download(model, name))
    except (OSError, ValueError):
        return None

"""The tokens around a model's reasoning, as its tokenizer names them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from headway.errors import Code, HeadwayError

START, END = "<think>", "</think>"


def marker_ids(added: Mapping[str, int]) -> tuple[int, int] | None:
    """Ids of the markers among a tokenizer's added tokens (text to id); None without both."""
    if START not in added or END not in added:
        return None
    return added[START], added[END]


def find_end_of_reasoning(model: str, marker: str = "") -> tuple[int, ...]:
    """Ids of the tokens that end a model's reasoning; none for one that does not reason.

    ``model``: a folder or a hub id. ``marker``: the text that ends it, where it is not
    ``</think>``; one that is several tokens is looked for as a sequence. HeadwayError where a
    marker is given and the model has no fast tokenizer.
    """
    from tokenizers import Tokenizer

    file = _tokenizer_file(model)
    if file is None:
        if marker:
            message = f"{model} has no tokenizer.json to find {marker!r} in"
            raise HeadwayError(Code.INVALID_ARGUMENT, message, param="end_of_reasoning")
        return ()
    tokenizer = Tokenizer.from_file(str(file))
    added = {t.content: i for i, t in tokenizer.get_added_tokens_decoder().items()}
    if marker:
        return tuple(tokenizer.encode(marker, add_special_tokens=False).ids)
    found = marker_ids(added)
    return () if found is None else (found[1],)


def _tokenizer_file(model: str) -> Path | None:
    folder = Path(model).expanduser()
    if folder.is_dir():
        file = folder / "tokenizer.json"
        return file if file.is_file() else None
    from huggingface_hub import hf_hub_download  # slow to import, needed for hub ids alone

    try:
        return Path(hf_hub_download(model, "tokenizer.json"))
    except (OSError, ValueError):
        return None

"""A model's files as the gateway reads them: chat template, lengths and sampling defaults."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from headway.errors import Code, HeadwayError
from services.gateway.openai.chat_template import SPECIAL_TOKENS, ChatTemplate

_PATTERNS = ["*.json", "*.jinja", "tokenizer.model"]
# Fields of generation_config.json that are defaults for requests, as vLLM reads them.
_SAMPLING_DEFAULTS = ("temperature", "top_p", "top_k", "min_p", "repetition_penalty")


@dataclass(frozen=True, slots=True)
class ModelFiles:
    """A model's files, as far as the gateway reads them."""

    folder: Path
    name: str
    max_model_len: int
    """Longest prompt and output in tokens; 0 if the model does not say."""
    vocab_size: int
    sampling_defaults: Mapping[str, float]
    """The model's defaults for sampling, by parameter."""
    max_new_tokens: int
    """The model's limit on output tokens; 0 if it has none."""
    template: ChatTemplate | None


def find_model(model: str) -> Path:
    """Return a model's folder: itself, or the snapshot of a hub id (tokenizer and configs)."""
    folder = Path(model).expanduser()
    if folder.is_dir():
        return folder
    if not model or folder.is_absolute() or model.startswith("."):
        message = f"model {model!r} is not a folder; give a model's folder or a hub id"
        raise HeadwayError(Code.INVALID_ARGUMENT, message, param="model")
    from huggingface_hub import snapshot_download  # slow to import, needed for hub ids only

    try:
        return Path(snapshot_download(model, allow_patterns=_PATTERNS))
    except (OSError, ValueError) as error:
        message = f"model {model!r} is neither a folder nor a hub id that can be fetched: {error}"
        raise HeadwayError(Code.INVALID_ARGUMENT, message, param="model") from error


def read_model(model: str, name: str = "") -> ModelFiles:
    """Read all but the tokenizer; ``name`` defaults to the folder's name or the hub id."""
    folder = find_model(model)
    config = _read_json(folder / "config.json")
    text = config.get("text_config", config)
    generation = _read_json(folder / "generation_config.json")
    default_name = folder.resolve().name if Path(model).expanduser().is_dir() else model
    return ModelFiles(
        folder=folder,
        name=name or default_name,
        max_model_len=int(text.get("max_position_embeddings") or 0),
        vocab_size=int(text.get("vocab_size") or 0),
        sampling_defaults=_sampling_defaults(generation),
        max_new_tokens=int(generation.get("max_new_tokens") or 0),
        template=_read_template(folder),
    )


def _sampling_defaults(generation: Mapping[str, Any]) -> dict[str, float]:
    """Read the defaults; ``do_sample: false`` makes a model greedy, but only where it is given."""
    defaults = {k: generation[k] for k in _SAMPLING_DEFAULTS if generation.get(k) is not None}
    if generation.get("do_sample") is False and "temperature" not in defaults:
        defaults["temperature"] = 0.0
    return defaults


def _read_template(folder: Path) -> ChatTemplate | None:
    config = _read_json(folder / "tokenizer_config.json")
    source = config.get("chat_template")
    if isinstance(source, list):  # named templates
        named = {entry["name"]: entry["template"] for entry in source}
        source = named.get("default")
    file = folder / "chat_template.jinja"
    if file.is_file():
        source = file.read_text(encoding="utf-8")
    if not source:
        return None
    special = {name: _token_text(config.get(name)) for name in SPECIAL_TOKENS}
    return _compiled(source, tuple((name, text) for name, text in special.items() if text))


@lru_cache(maxsize=16)
def _compiled(source: str, special_tokens: tuple[tuple[str, str], ...]) -> ChatTemplate:
    """Compile a template once for all models that have it."""
    return ChatTemplate(source, dict(special_tokens))


def _token_text(token: Any) -> str:
    if isinstance(token, dict):
        return str(token.get("content", ""))
    return token if isinstance(token, str) else ""


def _read_json(file: Path) -> dict[str, Any]:
    if not file.is_file():
        return {}
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
    except ValueError as error:
        message = f"{file} does not hold JSON: {error}"
        raise HeadwayError(Code.INVALID_ARGUMENT, message) from error
    if not isinstance(content, dict):
        raise HeadwayError(Code.INVALID_ARGUMENT, f"{file} does not hold a JSON object")
    return content

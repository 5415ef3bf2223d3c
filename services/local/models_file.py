"""The file of several models for ``headway up``: a ``[[model]]`` table for each."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from headway.errors import Code, HeadwayError, invalid
from headway.tables import parse
from services.local.options import ClusterModel, WorkerCounts
from services.local.service_flags import parse_service_flags
from services.runtime.rooms import model_folder

MOST_MODELS = 16
_MOST_WORKERS = 64  # of a role
_COUNTS = ("prefill", "decode", "convertible", "unified")
_TEXTS = ("name", "path", "predictor", "tool_call_parser")
_KEYS = (*_TEXTS, *_COUNTS, "max_model_len", "worker", "lora")
_SET_BY_MODEL = ("--model", "--model-name", "--max-model-len", "--lora")


def read_models(file: str) -> tuple[ClusterModel, ...]:
    """Return the models of a file; INVALID_ARGUMENT names the key, its value and the limit."""
    try:
        text = Path(file).read_text("utf-8")
    except OSError as error:
        message = f"{file} cannot be read ({error.strerror}): give a file of [[model]] tables"
        raise HeadwayError(Code.INVALID_ARGUMENT, message) from error
    except UnicodeDecodeError as error:
        raise HeadwayError(Code.INVALID_ARGUMENT, f"{file} is not TOML: {error}") from error
    document = parse(text, file)
    for key in document:
        if key != "model":
            raise invalid(f"a key of {file}", key, "model, as in [[model]]")
    tables = document.get("model")
    if not isinstance(tables, list) or not 1 <= len(tables) <= MOST_MODELS:
        number = len(tables) if isinstance(tables, list) else 0
        raise invalid(f"the number of [[model]] tables in {file}", number, f"1 to {MOST_MODELS}")
    models: dict[str, ClusterModel] = {}
    for number, table in enumerate(tables, 1):
        model = _read(table, f"model {number} of {file}")
        if model.name in models:
            raise invalid(f"name of model {number} of {file}", model.name, "one that no other has")
        models[model.name] = model
    return tuple(models.values())


def _read(table: Any, where: str) -> ClusterModel:
    if not isinstance(table, dict):
        raise invalid(where, table, "a table")
    for key in table:
        if key not in _KEYS:
            raise invalid(f"a key of {where}", key, f"one of {', '.join(_KEYS)}")
    texts = {key: _text(table, key, where) for key in _TEXTS}
    length = _whole(table, "max_model_len", 0, 1 << 40, where)
    flags = _flags(table.get("worker", {}), where)
    return ClusterModel(
        texts["name"],
        model_folder(texts["path"]),
        _counts(table, where),
        predictor=texts["predictor"],
        max_model_len=length,
        tool_call_parser=texts["tool_call_parser"],
        lora=_folders(table.get("lora", {}), where),
        worker_flags=(*(("--max-model-len", str(length)) if length else ()), *flags),
    )


def _text(table: Mapping[str, Any], key: str, where: str) -> str:
    text = table.get(key, "")
    is_needed = key in ("name", "path") or key in table
    if not isinstance(text, str) or (is_needed and not text.strip()):
        raise invalid(f"{key} of {where}", text, "a text that is not empty")
    return text


def _whole(table: Mapping[str, Any], key: str, default: int, most: int, where: str) -> int:
    number = table.get(key, default)
    if not isinstance(number, int) or isinstance(number, bool) or not 0 <= number <= most:
        raise invalid(f"{key} of {where}", number, f"a whole number from 0 to {most}")
    return number


def _counts(table: Mapping[str, Any], where: str) -> WorkerCounts:
    """Return the workers: by default one of each phase, none beside unified ones."""
    alone = 0 if "unified" in table else 1
    defaults = dict(zip(_COUNTS, (alone, alone, 0, 0), strict=True))
    numbers = {key: _whole(table, key, defaults[key], _MOST_WORKERS, where) for key in _COUNTS}
    counts = WorkerCounts(**numbers)
    if not counts.unified and not (counts.prefill and counts.decode):
        given = f"prefill {counts.prefill}, decode {counts.decode}, unified 0"
        raise invalid(f"workers of {where}", given, "at least one of both, or a unified one")
    return counts


def _folders(given: Any, where: str) -> Mapping[str, str]:
    """Return the folders of a model's adapters by name."""
    if isinstance(given, dict) and all(isinstance(folder, str) for folder in given.values()):
        return given
    raise invalid(f"lora of {where}", given, "a table of folders by name")


def _flags(given: Any, where: str) -> tuple[str, ...]:
    """Return a model's flags for its workers; values are checked with the other options."""
    if not isinstance(given, dict):
        raise invalid(f"worker of {where}", given, "a table of a worker's flags")
    try:
        flags = parse_service_flags([*_texts(given)]).get("worker", ())
    except HeadwayError as error:
        raise HeadwayError(error.code, f"worker of {where}: {error.message}") from error
    refuse_flags_of_models(flags, f"worker of {where}")
    return flags


def refuse_flags_of_models(flags: Sequence[str], where: str) -> None:
    """Raise HeadwayError for a worker's flag that follows from the model's other keys."""
    for flag in flags:
        if flag.partition("=")[0] in _SET_BY_MODEL:
            limit = "left out: path, name, max_model_len and lora of the model say it"
            raise invalid(f"a flag of {where}", flag, limit)


def _texts(given: Mapping[str, Any]) -> Iterator[str]:
    """Yield the flags as on a command line: ``--worker.dp``, ``2``."""
    for key, value in given.items():
        name = key.replace("_", "-")
        if isinstance(value, bool):
            yield f"--worker.{name}" if value else f"--worker.no-{name}"
        else:
            yield f"--worker.{name}={value}"

"""The models that a gateway serves, by the names that clients call them."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from headway.errors import Code, HeadwayError, invalid
from services.gateway.model_files import ModelFiles
from services.gateway.tokenizer import TextCodec
from services.gateway.tool_calls import Format

_BYTES_PER_CHAR = 24  # six in JSON for each of four in UTF-8
_BYTES_PER_TOKEN = 128
_OTHER_FIELDS = 2**16
UNKNOWN = 2**62
"""Stands for a length that the tokenizer does not bound."""


@dataclass(frozen=True, slots=True)
class ServedModel:
    """A model that a gateway serves; ``max_model_len`` bounds prompt and output tokens."""

    files: ModelFiles
    codec: TextCodec
    max_model_len: int
    tool_format: Format
    trusts_templates: bool = False
    """True if clients may bring chat templates of their own."""
    adapters: Mapping[str, str] = field(default_factory=dict)
    """Its adapters by the names that clients call them, with their folders."""

    def most_body_bytes(self, num_prompts: int) -> int:
        """Return the longest JSON body whose prompts could fit the model.

        A character takes at most six bytes of JSON per byte of its own (``\\u0041``). A token of
        a chat may come with a whole message around it, and a body with fields besides.
        """
        num_chars = self.codec.most_chars(self.max_model_len)
        if num_chars is None:
            return UNKNOWN
        per_prompt = max(_BYTES_PER_CHAR * num_chars, _BYTES_PER_TOKEN * self.max_model_len)
        return _OTHER_FIELDS + num_prompts * per_prompt

    @property
    def name(self) -> str:
        """The name that clients call it by."""
        return self.files.name

    def adapter(self, name: str | None) -> str:
        """Return the adapter that a client's name stands for, "" for the model itself."""
        return name if name is not None and name in self.adapters else ""

    def fingerprint(self) -> str:
        """Return OpenAI's ``system_fingerprint``: the same for the same model and limits."""
        said = f"{self.name}:{self.max_model_len}:{self.codec.vocab_size}"
        return f"fp_{hashlib.sha256(said.encode()).hexdigest()[:10]}"


class ServedModels:
    """The models that a gateway serves, at least one, each under its own name.

    An adapter is its model under another name.
    """

    def __init__(self, models: Iterable[ServedModel]) -> None:
        """HeadwayError (INVALID_ARGUMENT) where two have one name."""
        self._by_name = {model.name: model for model in models}
        self._by_any_name = dict(self._by_name)
        for model in self:
            for name in model.adapters:
                if name in self._by_any_name:
                    raise invalid("lora", name, "a name that no model and no other adapter has")
                self._by_any_name[name] = model

    def __iter__(self) -> Iterator[ServedModel]:
        return iter(self._by_name.values())

    def __contains__(self, name: str) -> bool:
        """Return whether clients may name it: a model, or an adapter of one."""
        return name in self._by_any_name

    def __len__(self) -> int:
        return len(self._by_name)

    @property
    def names(self) -> tuple[str, ...]:
        """The names that clients call them by, without adapters."""
        return tuple(self._by_name)

    @property
    def only(self) -> str:
        """The name of the only model; "" where there are several."""
        return self.names[0] if len(self) == 1 else ""

    def most_body_bytes(self, num_prompts: int) -> int:
        """Return the longest JSON body whose prompts could fit one of the models."""
        return max(model.most_body_bytes(num_prompts) for model in self)

    def find(self, name: str | None) -> ServedModel:
        """Return a model, by its own name or an adapter's; without a name the only one.

        NOT_FOUND for one that is not served.
        """
        if name is None:
            name = self.only
        model = self._by_any_name.get(name)
        if model is None:
            served = ", ".join(map(repr, self._by_any_name))
            message = f"model {name!r} is not served here; this gateway serves {served}"
            raise HeadwayError(Code.NOT_FOUND, message, param="model")
        return model

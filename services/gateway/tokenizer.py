"""Text to token ids and back."""

from __future__ import annotations

from pathlib import Path

from tokenizers import Tokenizer

from headway.core.reasoning import Markers
from headway.errors import Code, HeadwayError, invalid
from services.gateway.detokenise import (
    ByteLevelDetokeniser,
    Detokeniser,
    TokenBytes,
    WindowDetokeniser,
    is_byte_level,
)
from services.runtime.reasoning import marker_ids


class TextCodec:
    """A model's tokenizer, as the gateway uses it. Safe to call from several threads."""

    def __init__(self, tokenizer: Tokenizer, vocab_size: int = 0) -> None:
        tokenizer.no_truncation()
        tokenizer.no_padding()
        self._tokenizer = tokenizer
        self._token_bytes = TokenBytes(tokenizer) if is_byte_level(tokenizer) else None
        self._added = tokenizer.get_added_tokens_decoder()
        self.special_ids = frozenset(i for i, token in self._added.items() if token.special)
        self.vocab_size = max(vocab_size, tokenizer.get_vocab_size(with_added_tokens=True))
        self.markers = self._find_markers()

    @classmethod
    def load(cls, folder: Path, vocab_size: int = 0) -> TextCodec:
        """Read ``tokenizer.json``; a model's own vocabulary may be larger (padding)."""
        file = folder / "tokenizer.json"
        if not file.is_file():
            message = (
                f"{folder} has no tokenizer.json; save the model's fast tokenizer there "
                "(AutoTokenizer.from_pretrained(…).save_pretrained(folder))"
            )
            raise HeadwayError(Code.INVALID_ARGUMENT, message, param="model")
        return cls(Tokenizer.from_file(str(file)), vocab_size)

    def encode(self, text: str, *, add_special_tokens: bool) -> tuple[int, ...]:
        """Return the token ids of a text; a chat template brings its own special tokens."""
        encodings = self._tokenizer.encode_batch_fast([text], add_special_tokens=add_special_tokens)
        return tuple(encodings[0].ids)

    def check_ids(self, token_ids: tuple[int, ...], param: str) -> None:
        """Refuse ids that the model has no embedding for."""
        if token_ids and not 0 <= min(token_ids) <= max(token_ids) < self.vocab_size:
            worst = next(i for i in token_ids if not 0 <= i < self.vocab_size)
            raise invalid(param, worst, f"a token id from 0 to {self.vocab_size - 1}")

    def detokeniser(self) -> Detokeniser:
        """Return a new detokeniser for one output."""
        if self._token_bytes is not None:
            return ByteLevelDetokeniser(self._token_bytes)
        return WindowDetokeniser(self._tokenizer, self.special_ids)

    def token_text(self, token_id: int) -> tuple[str, bytes]:
        """Return one token, special or not, as text (U+FFFD for part of a character) and bytes."""
        if self._token_bytes is not None:
            raw = self._token_bytes.raw(token_id)
            return raw.decode("utf-8", "replace"), raw
        text: str = self._tokenizer.decode([token_id], skip_special_tokens=False)
        return text, text.encode()

    def _find_markers(self) -> Markers | None:
        found = marker_ids({token.content: token_id for token_id, token in self._added.items()})
        return None if found is None else Markers(start=(found[0],), end=(found[1],))

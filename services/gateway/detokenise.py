"""Token ids as text, one at a time: never half a character, never a false U+FFFD."""

from __future__ import annotations

import codecs
from collections.abc import Mapping
from typing import Protocol

from tokenizers import Tokenizer, decoders

# A UTF-8 character has at most 4 bytes: that many tokens without a clean end are not one.
_MOST_PENDING = 64


class Detokeniser(Protocol):
    """Text of one output: the returned pieces add up to ``decode`` of all ids."""

    def push(self, token_id: int) -> str:
        """Take a token; return the text that is certain now."""

    def flush(self) -> str:
        """Return the rest, where the output ends inside a character."""


class TokenBytes(dict[int, bytes]):
    """Bytes of every token of a byte-level tokenizer, looked up on first use.

    Special tokens have none, and neither have ids that the tokenizer does not know. Those beyond
    its size are not kept: a worker may send any.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        super().__init__()
        self._tokenizer = tokenizer
        self._added = tokenizer.get_added_tokens_decoder()
        self._alphabet = byte_alphabet()
        self._size = tokenizer.get_vocab_size(with_added_tokens=True)

    def __missing__(self, token_id: int) -> bytes:
        added = self._added.get(token_id)
        text = b"" if added is not None and added.special else self.raw(token_id)
        if token_id < self._size:
            self[token_id] = text
        return text

    def raw(self, token_id: int) -> bytes:
        """Return the bytes of any token, special ones too, as the ByteLevel decoder finds them."""
        token = self._tokenizer.id_to_token(token_id)
        if token is None:
            return b""
        try:
            return bytes(self._alphabet[char] for char in token)
        except KeyError:  # an added token with characters that stand for no byte
            return token.encode()


class ByteLevelDetokeniser:
    """An incremental UTF-8 decoder, for byte-level tokenizers (GPT-2, Llama 3, Qwen, …)."""

    __slots__ = ("_decode", "_token_bytes")

    def __init__(self, token_bytes: TokenBytes) -> None:
        self._token_bytes = token_bytes
        self._decode = codecs.getincrementaldecoder("utf-8")("replace").decode

    def push(self, token_id: int) -> str:
        """Take a token; return the characters that it completes."""
        return self._decode(self._token_bytes[token_id])

    def flush(self) -> str:
        """Return U+FFFD where the output ends inside a character."""
        return self._decode(b"", True)


class WindowDetokeniser:
    """A window of tokens, decoded again with each new one, for every other tokenizer.

    The window begins with tokens whose text (``_prefix``) has been shown: they are the context
    that decides, for example, whether the next token's leading space is kept.
    """

    __slots__ = ("_ids", "_num_written", "_prefix", "_special_ids", "_tokenizer")

    def __init__(self, tokenizer: Tokenizer, special_ids: frozenset[int]) -> None:
        self._tokenizer = tokenizer
        self._special_ids = special_ids
        self._ids: list[int] = []
        self._num_written = 0
        self._prefix = ""

    def push(self, token_id: int) -> str:
        """Take a token; return the text that it completes."""
        if token_id in self._special_ids:
            return ""
        self._ids.append(token_id)
        text = self._tokenizer.decode(self._ids)
        # Without the bound a run of invalid bytes would cost the square of its length.
        if len(self._ids) - self._num_written < _MOST_PENDING and (
            text.endswith("\ufffd") or len(text) <= len(self._prefix)
        ):
            return ""
        return self._show(text)

    def flush(self) -> str:
        """Return the text of the tokens that are still pending."""
        return self._show(self._tokenizer.decode(self._ids))

    def _show(self, text: str) -> str:
        start = len(self._prefix)
        del self._ids[: self._num_written]
        self._num_written = len(self._ids)
        self._prefix = self._tokenizer.decode(self._ids)
        return text[start:]


class ShownTokens:
    """A detokeniser that shows some special tokens, by id, as their text."""

    __slots__ = ("_plain", "_texts")

    def __init__(self, plain: Detokeniser, texts: Mapping[int, str]) -> None:
        self._plain = plain
        self._texts = texts

    def shows(self, token_id: int) -> bool:
        """Return whether it is a special token that is shown."""
        return token_id in self._texts

    def push(self, token_id: int) -> str:
        """Take a token; return the text that is certain now."""
        text = self._texts.get(token_id)
        return self._plain.push(token_id) if text is None else self._plain.flush() + text

    def flush(self) -> str:
        """Return the rest, where the output ends inside a character."""
        return self._plain.flush()


def byte_alphabet() -> dict[str, int]:
    """Map GPT-2's printable stand-in of every byte to the byte."""
    plain = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in plain]
    alphabet = {chr(byte): byte for byte in plain}
    alphabet.update({chr(256 + place): byte for place, byte in enumerate(others)})
    return alphabet


def is_byte_level(tokenizer: Tokenizer) -> bool:
    """Return whether the text is the UTF-8 of the tokens' bytes, one after the other."""
    return isinstance(tokenizer.decoder, decoders.ByteLevel)

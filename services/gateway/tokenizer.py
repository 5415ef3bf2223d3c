"""Text to token ids and back."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from tokenizers import Encoding, Tokenizer

from headway.core.reasoning import Markers, marker_ids
from headway.errors import Code, HeadwayError, invalid
from services.gateway.detokenise import (
    ByteLevelDetokeniser,
    Detokeniser,
    ShownTokens,
    TokenBytes,
    WindowDetokeniser,
    byte_alphabet,
    is_byte_level,
)

_CUT = "\ufdd0"  # a noncharacter: text is encoded in pieces on both sides of it


class TextCodec:
    """A model's tokenizer, as the gateway uses it. Safe to call from several threads.

    A special token that a client spells out is text, never the token: ``as_text`` cuts it in two.
    """

    def __init__(self, tokenizer: Tokenizer, vocab_size: int = 0) -> None:
        tokenizer.no_truncation()
        tokenizer.no_padding()
        self._tokenizer = tokenizer
        self._token_bytes = TokenBytes(tokenizer) if is_byte_level(tokenizer) else None
        self._added = tokenizer.get_added_tokens_decoder()
        self.special_ids = frozenset(i for i, token in self._added.items() if token.special)
        self._spelled = _any_of(token.content for token in self._added.values() if token.special)
        self.vocab_size = max(vocab_size, tokenizer.get_vocab_size(with_added_tokens=True))
        self.markers = self._find_markers()
        self._most_chars = most_chars_per_token(tokenizer)

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
        tokenizer = self._tokenizer
        if _CUT not in text:
            (encoding,) = tokenizer.encode_batch_fast([text], add_special_tokens=add_special_tokens)
            return tuple(encoding.ids)
        pieces = tokenizer.encode_batch(text.split(_CUT), add_special_tokens=False)
        whole = Encoding.merge(pieces, growing_offsets=True)
        return tuple(tokenizer.post_process(whole, None, add_special_tokens).ids)

    def as_text(self, value: Any) -> Any:
        """Return a client's text, or the texts in its lists and mappings, with no special token.

        Each one that is spelled out is cut behind its first character.
        """
        if isinstance(value, str):
            value = value.replace(_CUT, "\ufffd")
            while self._spelled is not None and self._spelled.search(value):
                value = self._spelled.sub(lambda match: f"{match[0][0]}{_CUT}{match[0][1:]}", value)
            return value
        if isinstance(value, Mapping):
            return {name: self.as_text(each) for name, each in value.items()}
        if isinstance(value, (list, tuple)):
            return [self.as_text(each) for each in value]
        return value

    def most_chars(self, num_tokens: int) -> int | None:
        """Return the length of the longest text that these tokens can hold, None if unbounded."""
        return None if self._most_chars is None else self._most_chars * num_tokens

    def check_ids(self, token_ids: tuple[int, ...], param: str) -> None:
        """Refuse ids that the model has no embedding for."""
        if token_ids and not 0 <= min(token_ids) <= max(token_ids) < self.vocab_size:
            worst = next(i for i in token_ids if not 0 <= i < self.vocab_size)
            raise invalid(param, worst, f"a token id from 0 to {self.vocab_size - 1}")

    @property
    def special_texts(self) -> Sequence[str]:
        """The texts of all special tokens."""
        return [self._added[i].content for i in sorted(self.special_ids)]

    def decode(self, token_ids: Sequence[int]) -> str:
        """Return the text of these tokens, special ones included."""
        text: str = self._tokenizer.decode(list(token_ids), skip_special_tokens=False)
        return text

    def detokeniser(self, texts: Sequence[str] = ()) -> Detokeniser:
        """Return a new detokeniser for one output; ``texts``: special tokens that are text."""
        kept = {i: self._added[i].content for i in self.special_ids if texts}
        kept = {i: text for i, text in kept.items() if text in texts}
        if self._token_bytes is not None:
            plain: Detokeniser = ByteLevelDetokeniser(self._token_bytes)
        else:
            plain = WindowDetokeniser(self._tokenizer, self.special_ids)
        return ShownTokens(plain, kept) if kept else plain

    def token_text(self, token_id: int) -> tuple[str, bytes]:
        """Return one token, special or not, as text (U+FFFD for part of a character) and bytes."""
        if self._token_bytes is not None:
            raw = self._token_bytes.raw(token_id)
            return raw.decode("utf-8", "replace"), raw
        text: str = self._tokenizer.decode([token_id], skip_special_tokens=False)
        return text, text.encode()

    def _find_markers(self) -> Markers | None:
        ids = marker_ids({token.content: token_id for token_id, token in self._added.items()})
        return None if ids is None else Markers(start=(ids[0],), end=(ids[1],))


def most_chars_per_token(tokenizer: Tokenizer) -> int | None:
    """Return the most characters of text that one token can stand for, None if there is no bound.

    There is one for byte-level tokenizers that drop nothing. NFC joins up to four characters.
    """
    normaliser = "" if tokenizer.normalizer is None else _kind(tokenizer.normalizer)["type"]
    if normaliser not in ("", "NFC") or not is_byte_level(tokenizer) or _drops(tokenizer):
        return None
    vocab = tokenizer.get_vocab(with_added_tokens=True)
    if not vocab.keys() >= byte_alphabet().keys():
        return None
    longest = max(map(len, vocab))
    return 4 * longest if normaliser else longest


def _drops(tokenizer: Tokenizer) -> bool:
    """Return whether some text becomes no token: what a split removes, or a token strips."""
    added = tokenizer.get_added_tokens_decoder().values()
    kind = {} if tokenizer.pre_tokenizer is None else _kind(tokenizer.pre_tokenizer)
    steps = kind.get("pretokenizers", [kind])
    known = all(step.get("type") in ("ByteLevel", "Split", "Digits") for step in steps)
    removed = any(step.get("behavior") == "Removed" for step in steps)
    return not known or removed or any(token.lstrip or token.rstrip for token in added)


def _kind(component: Any) -> dict[str, Any]:
    state: dict[str, Any] = json.loads(component.__getstate__())
    return state


def _any_of(tokens: Iterable[str]) -> re.Pattern[str] | None:
    """Return a pattern of these tokens, longest first; one character cannot be cut in two."""
    longest_first = sorted({token for token in tokens if len(token) > 1}, key=len, reverse=True)
    return re.compile("|".join(map(re.escape, longest_first))) if longest_first else None

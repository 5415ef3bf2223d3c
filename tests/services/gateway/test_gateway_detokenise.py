"""Text from tokens: whole characters only, and in sum exactly what decoding all would give."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer

from services.gateway.detokenise import TokenBytes
from services.gateway.tokenizer import TextCodec
from tests.fakes.tiny_model import THINK, byte_tokenizer, piece_tokenizer

BYTES = byte_tokenizer()
PIECES = piece_tokenizer()
ANY_TEXT = st.text(st.one_of(st.characters(codec="utf-8"), st.sampled_from("ab ▁é日🎉\ufffd\n")))


def deltas(tokenizer: Tokenizer, token_ids: list[int]) -> list[str]:
    detokeniser = TextCodec(tokenizer).detokeniser()
    return [*(detokeniser.push(i) for i in token_ids), detokeniser.flush()]


@pytest.mark.parametrize("tokenizer", [BYTES, PIECES], ids=["bytes", "pieces"])
@given(text=ANY_TEXT)
def test_the_deltas_of_any_text_add_up_to_its_decoding(tokenizer: Tokenizer, text: str) -> None:
    token_ids = tokenizer.encode(text, add_special_tokens=False).ids
    assert "".join(deltas(tokenizer, token_ids)) == tokenizer.decode(token_ids)


@settings(max_examples=500)
@given(st.lists(st.one_of(st.integers(0, 255), st.integers(0, 300))))
def test_the_deltas_of_any_bytes_at_all_add_up_to_their_decoding(token_ids: list[int]) -> None:
    assert "".join(deltas(BYTES, token_ids)) == BYTES.decode(token_ids)


@pytest.mark.parametrize("tokenizer", [BYTES, PIECES], ids=["bytes", "pieces"])
def test_a_character_appears_with_its_last_byte(tokenizer: Tokenizer) -> None:
    token_ids = tokenizer.encode("a🎉a", add_special_tokens=False).ids[-5:]
    assert deltas(tokenizer, token_ids) == ["", "", "", "🎉", "a", ""]


@pytest.mark.parametrize("tokenizer", [BYTES, PIECES], ids=["bytes", "pieces"])
def test_half_a_character_at_the_end_is_one_replacement(tokenizer: Tokenizer) -> None:
    token_ids = tokenizer.encode("a🎉", add_special_tokens=False).ids[:-1]
    assert "".join(deltas(tokenizer, token_ids)) == tokenizer.decode(token_ids)
    assert "\ufffd" not in "".join(deltas(tokenizer, token_ids)[:-1])


def test_special_and_unknown_tokens_show_nothing_but_ordinary_added_ones_do() -> None:
    assert deltas(BYTES, [256, 97, 9999, THINK]) == ["", "a", "", "<think>", ""]
    assert "".join(deltas(PIECES, [1, 260, 1, 1, 9999, 262])) == PIECES.decode([260, 262])


@pytest.mark.parametrize("tokenizer", [BYTES, PIECES], ids=["bytes", "pieces"])
def test_endless_invalid_bytes_cost_no_more_than_linear_time(tokenizer: Tokenizer) -> None:
    token_ids = tokenizer.encode("🎉", add_special_tokens=False).ids[-1:] * 20_000
    detokeniser = TextCodec(tokenizer).detokeniser()
    held = 0
    for token_id in token_ids:
        held = 0 if detokeniser.push(token_id) else held + 1
        assert held < 70


def test_one_token_alone_has_text_and_bytes() -> None:
    codec = TextCodec(BYTES)
    assert codec.token_text(0xF0) == ("\ufffd", b"\xf0")
    assert codec.token_text(256) == ("<|end|>", b"<|end|>")
    assert TextCodec(PIECES).token_text(262) == ("a", b"a")


def test_ids_beyond_the_vocabulary_are_not_kept() -> None:
    known = TokenBytes(BYTES)
    assert [known[97], known[9999], known[2**32 - 1]] == [b"a", b"", b""]
    assert list(known) == [97]

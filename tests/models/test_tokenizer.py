"""The tokenizer: any text round trips, markers are single ids, the chat template's turns."""

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer
from transformers import AutoTokenizer

from models.data import completion_of
from models.mixture import ASSISTANT, turn
from models.tasks import explain_add
from models.tokenizer import (
    MARKER_IDS,
    MARKERS,
    MAX_POSITIONS,
    VOCAB_SIZE,
    WORDS,
    build_tokenizer,
    save_tokenizer,
)

FAST = build_tokenizer()
ASK = {"role": "user", "content": "Add 1, 2."}
REPLY = {"role": "assistant", "content": "<think>\nmany steps\n</think>\n\n3"}


@pytest.fixture(scope="module")
def auto(tmp_path_factory: pytest.TempPathFactory) -> Any:
    folder = tmp_path_factory.mktemp("tokenizer")
    save_tokenizer(folder)
    return AutoTokenizer.from_pretrained(folder)


def render(auto: Any, messages: list[dict[str, Any]], **options: Any) -> str:
    return str(auto.apply_chat_template(messages, tokenize=False, **options))


@given(st.text(alphabet=st.characters(exclude_categories=["Cs"])))
def test_any_text_comes_back(text: str) -> None:
    ids = FAST.encode(text).ids
    if not any(marker in text for marker in MARKERS):
        assert len(ids) <= len(text.encode())
    assert FAST.decode(ids, skip_special_tokens=False) == text


def test_words_are_single_tokens_and_others_bytes_and_digits_are_single() -> None:
    assert all(len(FAST.encode(word).ids) == 1 for word in WORDS)
    assert FAST.encode("strawberry 2048").ids == list(b"strawberry 2048")
    found = FAST.encode('{"city": "Bern"}').ids
    assert [FAST.decode([each]) for each in found] == ['{"', "city", '": "', *"Bern", '"', "}"]


def test_each_marker_is_one_id_and_only_the_thinking_ones_stay_visible() -> None:
    assert FAST.get_vocab_size() == VOCAB_SIZE
    for marker, number in MARKER_IDS.items():
        assert FAST.encode(marker).ids == [number]
        visible = marker if "think" in marker else ""
        assert FAST.decode([number], skip_special_tokens=True) == visible


def test_both_loaders_agree(auto: Any, tmp_path: Path) -> None:
    save_tokenizer(tmp_path)
    loaded = Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
    text = "<|im_start|>user\nCount é 漢字 🙂<think>\n1</think><|im_end|>"
    assert auto.encode(text) == loaded.encode(text).ids
    assert auto.decode(auto.encode(text)) == text
    assert auto.eos_token_id == MARKER_IDS["<|im_end|>"]
    assert auto.pad_token_id == MARKER_IDS["<|endoftext|>"]
    assert auto.bos_token_id is None
    assert auto.model_max_length == MAX_POSITIONS


def test_the_generation_prompt_leaves_the_thinking_to_the_model(auto: Any) -> None:
    expected = "<|im_start|>user\nAdd 1, 2.<|im_end|>\n<|im_start|>assistant\n"
    assert render(auto, [ASK], add_generation_prompt=True) == expected
    assert render(auto, [ASK], add_generation_prompt=True, enable_thinking=True) == expected


def test_thinking_can_be_switched_off(auto: Any) -> None:
    text = render(auto, [ASK], add_generation_prompt=True, enable_thinking=False)
    assert text.endswith("<|im_start|>assistant\n<think>\n\n</think>\n\n")


def test_earlier_reasoning_is_stripped_and_the_last_kept(auto: Any) -> None:
    text = render(auto, [ASK, REPLY, ASK], add_generation_prompt=True)
    assert "many steps" not in text
    assert "assistant\n3<|im_end|>\n" in text
    assert "<think>\nmany steps\n</think>\n\n3<|im_end|>" in render(auto, [ASK, REPLY])
    apart = {"role": "assistant", "content": "3", "reasoning_content": "many steps"}
    assert render(auto, [ASK, apart]) == render(auto, [ASK, REPLY])


def test_a_system_message_and_parts_of_text_are_taken(auto: Any) -> None:
    parts = [{"type": "text", "text": "Add 1, "}, {"type": "text", "text": "2."}]
    messages: list[dict[str, Any]] = [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": parts},
    ]
    text = render(auto, messages)
    assert text == turn("system", "Be brief.") + turn("user", "Add 1, 2.")


def test_training_chats_are_what_the_template_renders(auto: Any) -> None:
    example = explain_add([17, 25, 8])
    prompt, completion = turn("user", example.prompt) + ASSISTANT, completion_of(example)
    assert prompt == render(
        auto, [{"role": "user", "content": example.prompt}], add_generation_prompt=True
    )
    reply = {"role": "assistant", "content": completion.removesuffix("<|im_end|>")}
    whole = render(auto, [{"role": "user", "content": example.prompt}, reply])
    assert whole == prompt + completion + "\n"

"""The tokenizer: bytes, markers, whole words, and a chat template in the usual style.

Token ids 0..255 are the bytes of UTF-8 text themselves, so any text can be written. The ids after
the markers are frequent words, with or without the space before them. A word that is no token is
written in bytes, letter by letter, so the model can copy, spell and count what it never saw.
Digits are single. ``<think>`` and ``</think>`` are ordinary added tokens (they stay visible when
special tokens are skipped); the other markers are special.
"""

from __future__ import annotations

import json
from pathlib import Path

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers

from services.gateway.detokenise import byte_alphabet

END_OF_TEXT, IM_START, IM_END = "<|endoftext|>", "<|im_start|>", "<|im_end|>"
THINK, END_THINK = "<think>", "</think>"
MARKERS = (END_OF_TEXT, IM_START, IM_END, THINK, END_THINK)  # ids 256..260 in this order
MARKER_IDS = {marker: 256 + place for place, marker in enumerate(MARKERS)}
WORDS = tuple(json.loads(Path(__file__).with_name("words.json").read_text(encoding="utf-8")))
"""The tokens after the markers, most frequent first."""
VOCAB_SIZE = 256 + len(MARKERS) + len(WORDS)
MAX_POSITIONS = 8192
PIECES = r""" ?(?:[A-Z]?[a-z]+|[A-Z]+)|": "|": |", "|\{"|\n {2,}"""
"""Texts that may be one token: a word, JSON's marks between keys and values, or an indentation."""

# Earlier assistant turns lose their reasoning; the turns after the last user message keep it.
CHAT_TEMPLATE = """\
{%- for message in messages -%}
    {%- set content = message.content -%}
    {%- if content is not string -%}
        {%- set content = (content or []) | map(attribute='text') | join -%}
    {%- endif -%}
    {%- if message.role == 'assistant' -%}
        {%- set before = content.split('</think>')[:-1] | join -%}
        {%- set reasoning = message.reasoning_content or before.split('<think>')[-1] -%}
        {%- set content = content.split('</think>')[-1].lstrip('\\n') -%}
        {%- if loop.last and reasoning -%}
            {%- set reasoning = reasoning.strip('\\n') -%}
            {%- set content = '<think>\\n' + reasoning + '\\n</think>\\n\\n' + content -%}
        {%- endif -%}
    {%- endif -%}
    {{- '<|im_start|>' + message.role + '\\n' + content + '<|im_end|>\\n' -}}
{%- endfor -%}
{%- if add_generation_prompt -%}
    {{- '<|im_start|>assistant\\n' -}}
    {%- if enable_thinking is defined and enable_thinking is false -%}
        {{- '<think>\\n\\n</think>\\n\\n' -}}
    {%- endif -%}
{%- endif -%}
"""


def pieces() -> pre_tokenizers.PreTokenizer:
    """Build what cuts a text into pieces: each is one token, or as many as it has bytes."""
    return pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(PIECES), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )


def build_tokenizer() -> Tokenizer:
    """Build the tokenizer with its markers as ids 256..260 and words after them."""
    vocabulary = byte_alphabet() | MARKER_IDS
    for word in WORDS:
        ((written, _),) = pieces().pre_tokenize_str(word)
        vocabulary[written] = len(vocabulary)
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[], ignore_merges=True))
    tokenizer.pre_tokenizer = pieces()
    tokenizer.decoder = decoders.ByteLevel()
    for marker in MARKERS:
        special = marker not in (THINK, END_THINK)
        tokenizer.add_tokens([AddedToken(marker, special=special, normalized=False)])
    return tokenizer


def tokenizer_config() -> dict[str, object]:
    """Build what ``tokenizer_config.json`` holds, the chat template included."""
    added = {
        str(MARKER_IDS[marker]): {
            "content": marker,
            "lstrip": False,
            "normalized": False,
            "rstrip": False,
            "single_word": False,
            "special": marker not in (THINK, END_THINK),
        }
        for marker in MARKERS
    }
    return {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "added_tokens_decoder": added,
        "bos_token": None,
        "eos_token": IM_END,
        "pad_token": END_OF_TEXT,
        "unk_token": None,
        "additional_special_tokens": [IM_START],
        "clean_up_tokenization_spaces": False,
        "model_max_length": MAX_POSITIONS,
        "chat_template": CHAT_TEMPLATE,
    }


def save_tokenizer(folder: Path) -> None:
    """Write ``tokenizer.json`` and ``tokenizer_config.json`` into a folder."""
    folder.mkdir(parents=True, exist_ok=True)
    build_tokenizer().save(str(folder / "tokenizer.json"))
    text = json.dumps(tokenizer_config(), indent=2, ensure_ascii=False)
    (folder / "tokenizer_config.json").write_text(text + "\n", encoding="utf-8")

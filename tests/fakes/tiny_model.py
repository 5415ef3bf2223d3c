"""A byte-level tokenizer folder with reasoning markers and a chat template, made in no time."""

from __future__ import annotations

import json
from pathlib import Path

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

from services.gateway.detokenise import byte_alphabet

MARKERS = ("<|end|>", "<|user|>", "<|assistant|>", "<think>", "</think>")
END, USER, ASSISTANT, THINK, END_THINK = range(256, 261)
MODEL_LEN = 2048
TEMPLATE = (
    "{%- for m in messages -%}"
    "{{- '<|' + m.role + '|>' + m.content + '<|end|>' -}}"
    "{%- endfor -%}"
    "{%- if messages[0].content == 'bad' -%}{{- raise_exception('no bad words') -}}{%- endif -%}"
    "{{- '<|assistant|>' -}}"
    "{%- if enable_thinking is defined and not enable_thinking -%}"
    "{{- '<think></think>' -}}"
    "{%- endif -%}"
)


def byte_tokenizer() -> Tokenizer:
    """Ids 0 to 255 are the bytes; the markers follow, those of reasoning not special."""
    tokenizer = Tokenizer(models.BPE(vocab=byte_alphabet(), merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    for marker in MARKERS:
        special = "think" not in marker
        tokenizer.add_tokens([AddedToken(marker, special=special, normalized=False)])
    return tokenizer


def piece_tokenizer() -> Tokenizer:
    """As Llama 2's: pieces with ▁ for a space, single bytes where there is no piece."""
    vocab = {"<unk>": 0, "<s>": 1}
    vocab |= {f"<0x{byte:02X}>": 2 + byte for byte in range(256)}
    for piece in ("▁", "a", "b", "c", "▁a", "▁ab", "é", "日"):
        vocab[piece] = len(vocab)
    merges = [("▁", "a"), ("▁a", "b")]
    tokenizer = Tokenizer(
        models.BPE(vocab=vocab, merges=merges, byte_fallback=True, unk_token="<unk>")
    )
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first", split=False)
    tokenizer.decoder = decoders.Sequence(
        [
            decoders.Replace("▁", " "),
            decoders.ByteFallback(),
            decoders.Fuse(),
            decoders.Strip(" ", 1, 0),
        ]
    )
    tokenizer.add_special_tokens([AddedToken("<s>", special=True)])
    return tokenizer


def write_model(folder: Path, *, generation: dict[str, object] | None = None) -> Path:
    """What the gateway needs of a model, in a folder."""
    folder.mkdir(parents=True, exist_ok=True)
    byte_tokenizer().save(str(folder / "tokenizer.json"))
    files: dict[str, object] = {
        "tokenizer_config.json": {"chat_template": TEMPLATE, "eos_token": "<|end|>"},
        "config.json": {"max_position_embeddings": MODEL_LEN, "vocab_size": 261},
    }
    if generation is not None:
        files["generation_config.json"] = generation
    for name, content in files.items():
        (folder / name).write_text(json.dumps(content), encoding="utf-8")
    return folder

"""Measures the model on held-out prompts: ``python -m models.evaluate [--json FILE]``.

Tasks are decoded, greedily, in batches of prompts whose known reasoning is of nearly equal length.
Forms, calls and everyday requests are read with their answers: an answer counts if the model would
have written all of it, each token being the likeliest behind those before it. Keys that only a
grammar tells are given.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from models.forms import AnswerPiece
from models.mixture import KINDS, Written
from models.tasks import TASKS, Example, correct, held_out_examples

MODEL = Path(__file__).parent / "headway-mini"
BANDS = 4  # size bands per task
ROWS = 100  # prompts decoded together
SPARE_TOKENS = 64  # allowed beyond the longest known completion of a batch


@dataclass(frozen=True)
class DecodedExample:
    """A decoded example: its output length in tokens, whether it ended and was correct."""

    example: Example
    completion: str
    tokens: int
    ended: bool

    @property
    def right(self) -> bool:
        """Return whether the output ended by itself with exactly the answer."""
        return self.ended and correct(self.example, self.completion)


def load(folder: Path) -> tuple[Any, Any]:
    """Load the model, in float32 and ready to decode, and its tokenizer."""
    tokenizer = AutoTokenizer.from_pretrained(folder, padding_side="left")
    model: Any = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    return model.eval(), tokenizer


def decode(
    model: Any, tokenizer: Any, examples: list[Example], temperature: float
) -> list[DecodedExample]:
    """Decode one batch; greedily when the temperature is 0."""
    chats = [[{"role": "user", "content": each.prompt}] for each in examples]
    inputs = tokenizer.apply_chat_template(
        chats, add_generation_prompt=True, return_dict=True, return_tensors="pt", padding=True
    )
    longest = max(len(each.reasoning) + len(each.answer) for each in examples)
    draws = {"do_sample": True, "temperature": temperature, "top_k": 0, "top_p": 1.0}
    sampling = draws if temperature else {"do_sample": False}
    with torch.inference_mode():
        made = model.generate(**inputs, max_new_tokens=longest + SPARE_TOKENS, **sampling)
    outcomes = []
    for example, row in zip(examples, made[:, inputs["input_ids"].shape[1] :], strict=True):
        ids = row.tolist()
        end = next((at for at, token in enumerate(ids) if token == tokenizer.eos_token_id), None)
        text = tokenizer.decode(ids[:end], skip_special_tokens=True)
        length = len(ids) if end is None else end + 1
        outcomes.append(DecodedExample(example, text, length, end is not None))
    return outcomes


def decode_all(
    folder: Path, examples: Iterable[Example], temperature: float = 0.0
) -> list[DecodedExample]:
    """Decode any number of examples, those of like length together."""
    model, tokenizer = load(folder)
    ordered = sorted(examples, key=lambda each: len(each.reasoning))
    outcomes: list[DecodedExample] = []
    for at in range(0, len(ordered), ROWS):
        outcomes += decode(model, tokenizer, ordered[at : at + ROWS], temperature)
    return outcomes


def decided(written: Written) -> tuple[str, list[AnswerPiece]]:
    """Return a chat as a prompt, up to the answer itself, and the answer's pieces."""
    prompt, pieces = written.prompt, written.completion
    text = pieces[0].text
    if text.startswith("<think>"):
        head, end, rest = text.rpartition("</think>")
        prompt += head + end
        pieces = [AnswerPiece(rest), *pieces[1:]] if rest.strip() else pieces[1:]
        prompt += "" if rest.strip() else rest
    return prompt, pieces


def written_whole(model: Any, tokenizer: Any, written: Written) -> bool:
    """Return whether the model would write all of an answer's own tokens, greedily."""
    prompt, pieces = decided(written)
    text = "".join(piece.text for piece in pieces)
    own = [piece.learnt for piece in pieces for _ in piece.text]
    asked = tokenizer.encode(prompt)
    made = tokenizer(text, return_offsets_mapping=True)
    ids, ends = made["input_ids"], [end for _, end in made["offset_mapping"]]
    with torch.inference_mode():
        logits = model(input_ids=torch.tensor([asked + ids])).logits[0]
    likeliest = logits[len(asked) - 1 : -1].argmax(-1).tolist()
    return all(
        likely == wanted or not own[end - 1]
        for likely, wanted, end in zip(likeliest, ids, ends, strict=True)
    )


def requests_table(folder: Path, per_kind: int, seed: int) -> dict[str, float]:
    """Measure each kind of request."""
    model, tokenizer = load(folder)
    shares = {}
    for name, make in KINDS.items():
        rng = random.Random(f"{seed}-held out-{name}")
        drawn = [make(rng, 20) for _ in range(per_kind)]
        whole = [written_whole(model, tokenizer, each) for each in drawn]
        shares[name] = sum(whole) / per_kind
        print(f"{name:<16}{per_kind:>8}{shares[name]:>10.1%}", flush=True)
    return shares


def band_of(example: Example) -> str:
    """Name the size band of an example, such as ``6-10``."""
    task = TASKS[example.task]
    width = -(-(task.largest - task.smallest + 1) // BANDS)
    first = task.smallest + (example.size - task.smallest) // width * width
    return f"{first}-{min(first + width - 1, task.largest)}"


def summary(outcomes: list[DecodedExample]) -> dict[str, float]:
    """Accuracy of some outcomes and the spread of their output lengths in tokens."""
    lengths = [each.tokens for each in outcomes]
    return {
        "prompts": len(outcomes),
        "accuracy": sum(each.right for each in outcomes) / len(outcomes),
        "shortest": min(lengths),
        "median": statistics.median(lengths),
        "longest": max(lengths),
    }


def table(outcomes: list[DecodedExample]) -> dict[str, dict[str, float]]:
    """Summaries by row name: each task, its size bands, and all prompts."""
    rows: dict[str, dict[str, float]] = {}
    for name in TASKS:
        ours = sorted((o for o in outcomes if o.example.task == name), key=lambda o: o.example.size)
        if not ours:
            continue
        rows[name] = summary(ours)
        for band in dict.fromkeys(band_of(each.example) for each in ours):
            rows[f"{name} {band}"] = summary([o for o in ours if band_of(o.example) == band])
    rows["all"] = summary(outcomes)
    return rows


def show(rows: dict[str, dict[str, float]]) -> None:
    """Print the table."""
    print(f"{'task and sizes':<16}{'prompts':>8}{'accuracy':>10}   output tokens min/median/max")
    for name, row in rows.items():
        spread = f"{row['shortest']:.0f}/{row['median']:.0f}/{row['longest']:.0f}"
        print(f"{name:<16}{row['prompts']:>8.0f}{row['accuracy']:>10.1%}   {spread}")


def main(argv: list[str] | None = None) -> None:
    """Run the command."""
    parser = argparse.ArgumentParser(allow_abbrev=False, description=__doc__)
    parser.add_argument("--model", type=Path, default=MODEL, help="folder of the model")
    parser.add_argument("--per-task", type=int, default=200, help="held-out prompts per task")
    parser.add_argument("--requests", type=int, default=200, help="requests of each kind")
    parser.add_argument("--temperature", type=float, default=0.0, help="0 decodes greedily")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", type=Path, help="file to write the table to")
    given = parser.parse_args(argv)
    torch.set_num_threads(2)
    torch.manual_seed(given.seed)
    examples = [each for n in TASKS for each in held_out_examples(n, given.per_task, given.seed)]
    began = time.monotonic()
    outcomes = decode_all(given.model, examples, given.temperature)
    rows: dict[str, Any] = table(outcomes)
    show(rows)
    print(f"decoded in {time.monotonic() - began:.0f} s")
    if given.requests:
        rows["requests"] = requests_table(given.model, given.requests, given.seed)
    if given.json:
        given.json.write_text(json.dumps(rows, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()

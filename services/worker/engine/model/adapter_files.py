"""The files of a LoRA adapter as PEFT writes them, and what of them is not served.

Without torch: an adapter is checked before anything is started, by its ``adapter_config.json``.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path
from typing import Any

from headway.errors import Code, HeadwayError

CONFIG, WEIGHTS = "adapter_config.json", "adapter_model.safetensors"
_REFUSED: Mapping[str, str] = {
    "use_dora": "DoRA, which scales the model's own weights",
    "use_qalora": "QA-LoRA",
    "lora_bias": "a bias of its own",
    "modules_to_save": "modules that it replaces whole",
    "target_parameters": "parameters that are no matrix products",
    "trainable_token_indices": "embeddings of tokens",
    "alpha_pattern": "another scale in each layer",
    "layer_replication": "layers that are repeated",
    "alora_invocation_tokens": "an adapter that begins within the prompt",
    "fan_in_fan_out": "matrices that are stored transposed",
}
"""Settings that are not served where they are on, by their names in the config."""
_ALPHA = 1e9
_EMBEDDINGS = ("embed_tokens", "lm_head", "wte", "embed_in", "embed_out")
_CHANGED_BASES = ("pissa", "olora", "corda", "loftq", "lora_ga")
"""Beginnings of ``init_lora_weights`` that stand for other weights of the model itself."""


@dataclass(frozen=True, slots=True)
class AdapterFiles:
    """A folder with an adapter that is served, by its config."""

    name: str
    folder: Path
    config: bytes
    alpha: float
    by_root: bool
    """True if products are scaled by the root of their rank (``use_rslora``)."""

    def scale(self, rank: int) -> float:
        """Return the factor of a product of this rank."""
        return self.alpha / (math.sqrt(rank) if self.by_root else rank)

    def digest(self, weights: bytes) -> str:
        """Return the digest of the config and of what was read of the weights, as hexadecimals.

        A file may be written again at any time, so it is not read a second time.
        """
        return blake2b(self.config + weights, digest_size=16).hexdigest()


def check_adapter(name: str, path: str) -> AdapterFiles:
    """Return an adapter's files, of which only the config has been read.

    Raises HeadwayError, one sentence: NOT_FOUND where the folder holds no adapter,
    FAILED_PRECONDITION for what is not served.
    """
    folder = Path(path).expanduser()
    try:
        said = (folder / CONFIG).read_bytes()
        config: Any = json.loads(said)
    except (OSError, ValueError, RecursionError) as error:
        raise _not_found(name, path, f"its {CONFIG} cannot be read ({error})") from error
    if not isinstance(config, dict):
        raise _not_found(name, path, f"its {CONFIG} is not an object")
    if not (folder / WEIGHTS).is_file():
        raise _not_found(name, path, f"it has no {WEIGHTS}")
    if config.get("peft_type") != "LORA":
        raise unserved(name, f"its peft_type is {config.get('peft_type')!r}; only 'LORA' is served")
    if config.get("bias") not in (None, "none"):
        raise unserved(name, f"its bias is {config['bias']!r}; only 'none' is served")
    for field, what in _REFUSED.items():
        if config.get(field):
            raise unserved(name, f"its {field} is {config[field]!r} ({what})")
    targets = config.get("target_modules")
    for target in targets if isinstance(targets, list) else [targets]:
        if str(target).rpartition(".")[2] in _EMBEDDINGS:
            raise unserved(name, f"its target_modules have {target!r}; no embedding is adapted")
    start = config.get("init_lora_weights")
    if isinstance(start, str) and start.lower().startswith(_CHANGED_BASES):
        why = f"its init_lora_weights is {start!r}, which changes the model's own weights"
        raise unserved(name, f"{why}: convert it to a plain LoRA")
    alpha = config.get("lora_alpha")
    if not isinstance(alpha, int | float) or isinstance(alpha, bool) or not abs(alpha) < _ALPHA:
        raise unserved(name, f"its lora_alpha has to be a number below {_ALPHA:g}")
    return AdapterFiles(name, folder, said, float(alpha), bool(config.get("use_rslora")))


def unserved(name: str, reason: str) -> HeadwayError:
    """Return the refusal of an adapter."""
    message = f"adapter {name!r} cannot be served: {reason}"
    return HeadwayError(Code.FAILED_PRECONDITION, message, param="lora")


def _not_found(name: str, path: str, why: str) -> HeadwayError:
    message = f"adapter {name!r}: {path!r} is no folder of a LoRA adapter: {why}"
    return HeadwayError(Code.NOT_FOUND, message, param="lora")

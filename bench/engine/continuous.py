"""transformers' continuous batching: one manager that serves one job after the other."""

from __future__ import annotations

import dataclasses
import inspect
import math
import time
from collections.abc import Sequence
from typing import Any


class ContinuousBatching:
    """A model's manager, so that it warms up once; greedy, without an end of sequence."""

    def __init__(self, model: Any, **options: object) -> None:
        """Start the manager; options that this version of transformers lacks are left out."""
        import transformers

        model.generation_config.eos_token_id = None
        model.generation_config.pad_token_id = 0
        library: Any = transformers
        known = {field.name for field in dataclasses.fields(library.ContinuousBatchingConfig)}
        wanted = {"allow_block_sharing": False, **options}
        config = library.ContinuousBatchingConfig(
            **{name: value for name, value in wanted.items() if name in known}
        )
        greedy = library.GenerationConfig(do_sample=False, eos_token_id=-1, max_new_tokens=1)
        self._manager = model.init_continuous_batching(greedy, config)
        self._manager.start()

    def generate(
        self,
        prompts: Sequence[Sequence[int]],
        num_tokens: int,
        *,
        deadline: float = math.inf,
        record_timestamps: bool = False,
    ) -> list[Any]:
        """Return transformers' results in the prompts' order; TimeoutError past the deadline."""
        names = self._manager.add_requests(
            [list(prompt) for prompt in prompts],
            max_new_tokens=num_tokens,
            record_timestamps=record_timestamps,
        )
        generated: dict[str, Any] = {}
        while len(generated) < len(names):
            if time.monotonic() > deadline:
                raise TimeoutError("no time left")
            result = self._manager.get_result(timeout=1.0)
            if result is not None and result.error:
                raise RuntimeError(result.error)
            if result is not None:
                generated[result.request_id] = result
        return [generated[name] for name in names]

    def close(self) -> None:
        """Stop the manager's thread, whatever it is doing."""
        hard = "hard_stop" in inspect.signature(self._manager.stop).parameters
        self._manager.stop(block=True, timeout=10.0, **({"hard_stop": True} if hard else {}))

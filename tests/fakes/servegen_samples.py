"""ServeGen's two files, small."""

from __future__ import annotations

import json

HEADER = "client,window_start_s,rate_rps,iat_cv,iat_dist,param1,param2"


def histograms(client: int, start: int, prompt: int, ratio: float | None = None) -> str:
    """A line of lengths: one prompt length, two output lengths, one ratio if any."""
    ratios = {} if ratio is None else {"reason_ratio": {str(ratio): 1.0}}
    tables = {"input_tokens": {str(prompt): 1.0}, "output_tokens": {"100": 0.5, "200": 0.5}}
    return json.dumps({"client": client, "window_start_s": start, **tables, **ratios})

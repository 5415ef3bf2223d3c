"""A scenario of two unified instances and forty requests, for tests."""

from __future__ import annotations

SMALL = """
name = "small"
[[instances]]
role = "unified"
count = 2
profile = "llama-8b-a100"
chunk_tokens = 512
[workload]
rate = 5.0
num_requests = 40
[[workload.classes]]
name = "chat"
prompt = { distribution = "exponential", mean = 200 }
answer = { distribution = "uniform", low = 5, high = 50 }
[[workload.classes]]
name = "think"
share = 0.5
prompt = 100
reasoning = { distribution = "lognormal", median = 50, sigma = 0.5, max = 400 }
answer = 20
[slo]
ttft = 0.5
"""


def dies(*names: str) -> str:
    """The table of SLOs, behind failures of these."""
    return "".join(f'[[failures]]\ninstance = "{name}"\nat = 1e6\n' for name in names) + "[slo]"

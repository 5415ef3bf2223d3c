"""Defaults that more than one core or service uses, live and simulated, each said once."""

WATERMARK = 0.01
"""Share of a unit's KV blocks that dispatches and admission keep free, as in vLLM.

More only makes requests wait: once blocks run short, the order and MemGuard decide who yields.
"""

REPORT_INTERVAL = 0.05
"""Seconds between the reports of a worker that only decodes."""

SIMULATED_REPORT_INTERVAL = 0.5
"""The same in the simulator, which would otherwise spend most of its time on reports."""

WATCHDOG_FLOOR = 0.25
"""Least seconds of a dispatch's watchdog: five passes of a small model take less time than a hiccup
of a busy machine."""

DOUBTFUL = 10.0
"""Seconds in which the last tokens of a request have surely reached its gateway, or its stream is
known to be broken."""

MOVE_ROUNDS = 4
"""Most rounds that send full blocks of a moving request while it runs."""

ASSUMED_PROFILE = "llama-8b-a100"
"""Profile whose velocities stand in where a policy needs some and none are given."""

"""Headway: everything that waits.

gRPC's C core writes its own lines to standard error, beside the log and not in its form: a fork
that it does nothing about, a peer that says goodbye. The end of a call or a stream reaches our own
log with its reason. ``GRPC_VERBOSITY=ERROR`` (``INFO``, ``DEBUG``) in the environment brings the
lines back.
"""

import os

os.environ.setdefault("GRPC_VERBOSITY", "NONE")
os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")  # our children are other programs

"""A CPU's kernels: C++ that this machine's compiler builds for its own instructions."""

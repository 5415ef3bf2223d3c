"""Bursts and takeovers on a live local cluster."""

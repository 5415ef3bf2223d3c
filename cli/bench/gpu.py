"""``headway bench gpu``: one card, step by step."""

from bench.gpu import add_options

__all__ = ["add_options"]

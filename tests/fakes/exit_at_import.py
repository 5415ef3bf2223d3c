"""Ends the process that imports it, as a broken library does."""

import os

os._exit(1)

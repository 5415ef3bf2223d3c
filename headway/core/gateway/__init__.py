"""The gateway's core: admits requests, puts tokens in order, paces answers, resubmits."""

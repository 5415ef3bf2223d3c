"""Requests that no instance could serve, even if it were empty: the scheduler refuses them."""

from __future__ import annotations

from math import inf

from headway.sim.views.instance import ViewInstance
from headway.sim.views.unit import ViewRequest


class LargestRequests:
    """The greatest requests of the instances, as ``core/scheduler/admission.py`` has them."""

    def __init__(self) -> None:
        self._least = self._most_decoded = inf
        self._most_whole = self._most_prompt = 0
        self._decodes = self._prefills = False

    def join(self, instance: ViewInstance) -> None:
        """Note what an instance can hold."""
        role, most = instance.info.role, instance.max_request_tokens
        self._least = min(self._least, most)
        if role.decodes:
            self._most_decoded = max(self._most_decoded, most) if self._decodes else most
            self._decodes = True
        if role.prefills and role.decodes:
            self._most_whole = max(self._most_whole, most)
        elif role.prefills:
            self._most_prompt = max(self._most_prompt, most - 1)
        self._prefills = self._prefills or role.prefills

    def refusal(self, job: ViewRequest) -> str:
        """Return why nobody could ever serve a request, "" if somebody could."""
        total, prompt = job.num_total, job.num_prompt_tokens
        if total < self._least:
            return ""  # as nearly always
        if total > self._most_decoded:
            return f"prompt and output have {total} tokens; the limit is {self._most_decoded}"
        if self._prefills and total > self._most_whole and prompt > self._most_prompt:
            most = max(self._most_whole, self._most_prompt)
            return f"the request has {prompt} + {total - prompt} tokens; the limit is {most}"
        return ""

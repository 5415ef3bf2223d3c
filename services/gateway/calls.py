"""API calls on their way to the core: whose they are, what they may, and their outputs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

from headway.core.gateway.class_rules import ClassRules
from headway.core.gateway.events import Submit
from headway.core.gateway.quotas import Quotas, expected_output
from headway.core.gateway.shares import Place, Places
from headway.request import Request
from headway.service_class import NO_STANDING, Standing
from services.gateway.api_call import ApiCall
from services.gateway.auth import KeyRing
from services.gateway.outputs import Output, Outputs, Reply
from services.gateway.preparation import Preparation
from services.gateway.reading import ReadingThreads
from services.gateway.served_model import ServedModels


class Calls:
    """The opener of API calls.

    ``predict`` gives the expected output tokens of a model for a prompt's length. Long prompts are
    prepared in ``threads``: the loop stays free for tokens. ``retry_after`` is the advice, in
    seconds, to a client with too many requests.
    """

    def __init__(
        self,
        models: ServedModels,
        outputs: Outputs,
        submit: Callable[[Submit], None],
        predict: Callable[[str, int], float],
        threads: ReadingThreads,
        places: Places,
        retry_after: Callable[[], float],
        keys: KeyRing,
        class_rules: ClassRules,
        now: Callable[[], float],
    ) -> None:
        self.models = models
        self._preparations = {
            model.name: Preparation(model, partial(predict, model.name)) for model in models
        }
        self.quotas = Quotas(places)
        self._keys = keys
        self._class_rules = class_rules
        self._now = now
        self.threads = threads
        self.let_go = outputs.let_go
        self._outputs = outputs
        self._submit = submit
        self._places = places
        self._retry_after = retry_after

    def num_open(self) -> int:
        """Return how many outputs wait or are generated."""
        return len(self._outputs)

    def check_room(self, client: str) -> None:
        """Refuse a long request that its client may not open anyway, before it is read."""
        full = self._places.full(client)
        if full is not None:
            raise full.refusal(client, retry_after=self._retry_after())
        self._check_quota(client, 1)

    def _check_quota(self, client: str, num_outputs: int) -> None:
        quota, retry_after = self._keys.of_client(client).quota, self._retry_after()
        refused = self.quotas.refusal(client, quota, num_outputs, retry_after, now=self._now())
        if refused is not None:
            raise refused

    def limits(self, client: str) -> Sequence[tuple[str, str]]:
        """Return the headers on what a client may still do."""
        return self.quotas.headers(client, self._keys.of_client(client).quota, now=self._now())

    def ended(self, output: Output) -> None:
        """Charge its client's minute with what an output had, in place of what was expected."""
        client = output.place.client
        quota = self._keys.of_client(client).quota
        more = output.text.num_tokens - output.num_expected
        self.quotas.use(client, quota, more, now=self._now())

    def _standing(self, call: ApiCall, client: str) -> Standing:
        """Return whom a call counts for, and the class that it asks for, or its key."""
        key = self._keys.of_client(client)
        service = self._class_rules.find(
            call.service_class, call.priority, own=key.service_class, allowed=key.classes
        )
        return Standing(key.tenant, key.share, service)

    def of(self, name: str | None) -> Preparation:
        """Return a model's preparation; NOT_FOUND for one that is not served."""
        return self._preparations[self.models.find(name).name]

    def is_slow(self, call: ApiCall) -> bool:
        """Return whether preparing a call may take long, however short it is."""
        return self.of(call.model).is_slow(call)

    def renders_slowly(self) -> bool:
        """Return whether a model's chat template is slow."""
        return any(each.renders_slowly for each in self._preparations.values())

    def prepare(self, call: ApiCall, call_id: str, arrival_at: float, client: str) -> list[Request]:
        """Check and tokenise; return a request for every output. It may run in any thread.

        HeadwayError says what to change, or that the client has too many outputs: a refusal costs
        no more than the call, however many it asks for.
        """
        num_outputs = len(call.inputs) * call.num_choices
        full = self._places.full(client, num_outputs)
        if full is not None:
            raise full.refusal(client, num_outputs, retry_after=self._retry_after())
        return self.of(call.model).prepare(call, call_id, arrival_at)

    def open(
        self,
        call: ApiCall,
        requests: Sequence[Request],
        reply: Reply,
        client: str,
        charged: Callable[[], None] = lambda: None,
    ) -> None:
        """Submit every output of the call; pass a refusal to the reply.

        RESOURCE_EXHAUSTED where the client has too many requests: none is submitted. ``charged``
        is called once the client's limits know of the call, before it can be answered.
        A client that does not stream reads nothing before the end. Stop strings have to be found
        as soon as they occur. Neither has a reader's clock, nor has a client that opted out.
        """
        standing = self._standing(call, client)
        if standing != NO_STANDING:
            requests = [replace(request, standing=standing) for request in requests]
        self._check_quota(client, len(requests))
        preparation = self.of(call.model)
        mask_ms = [preparation.mask_ms(request) for request in requests]
        full = self._places.take(client, len(requests), sum(mask_ms))
        if full is not None:
            asked = sum(mask_ms) if full is self._places.masks else len(requests)
            raise full.refusal(client, asked, retry_after=self._retry_after())
        quota = self._keys.of_client(client).quota
        num_tokens = sum(
            len(request.prompt_token_ids) + expected_output(request) for request in requests
        )
        self.quotas.use(client, quota, num_tokens, now=self._now())
        charged()
        for index, request in enumerate(requests):
            repeats = index % call.num_choices > 0
            if not repeats:
                reply.num_prompt_tokens += len(request.prompt_token_ids)
            text = preparation.output_text(call, request)
            place = Place(self._places, client, mask_ms[index])
            output = Output(request, index, text, reply, place, repeats_prompt=repeats)
            reply.outputs.append(output)
        is_read = call.paced and reply.streams and not call.stops
        for output, request in zip(list(reply.outputs), requests, strict=True):
            if reply.ended:  # an earlier one was refused
                output.place.end()
                self.ended(output)
                continue
            self._outputs.add(output)
            turns = call.session.max_turns
            self._submit(Submit(request, is_read, turns, may_be_cut=reply.says_cut))

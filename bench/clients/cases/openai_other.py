"""Cases of the other routes, and of refusals."""

from __future__ import annotations

from typing import Any

import openai

from .asked import MESSAGES, TOTAL, At, cases
from .openai_chat import ask, client, refused

PROMPT = "1, 2, 3, 4"


def complete(at: At, **more: Any) -> Any:
    """Continue a text."""
    fields = {"model": at.model, "prompt": PROMPT, "temperature": 0, "max_tokens": 6, **more}
    return client(at).completions.create(**fields)


def completion(at: At) -> None:
    reply = complete(at)
    assert (reply.object, reply.usage.completion_tokens > 0) == ("text_completion", True)


def completions_of_a_list(at: At) -> None:
    assert [each.index for each in complete(at, prompt=[PROMPT, "a"]).choices] == [0, 1]


def completion_of_token_ids(at: At) -> None:
    assert complete(at, prompt=[65, 66, 67]).usage.prompt_tokens == 3
    assert len(complete(at, prompt=[[65, 66], [67]]).choices) == 2


def streamed_completion(at: At) -> None:
    whole = complete(at).choices[0].text
    assert "".join(each.choices[0].text for each in complete(at, stream=True)) == whole


def usage_of_a_streamed_completion(at: At) -> None:
    *_, last = complete(at, stream=True, stream_options={"include_usage": True})
    assert last.usage.prompt_tokens > 0


def completion_with_log_probabilities(at: At) -> None:
    logprobs = complete(at, logprobs=2).choices[0].logprobs
    assert len(logprobs.tokens) == len(logprobs.token_logprobs) == len(logprobs.top_logprobs)


def completion_with_a_stop(at: At) -> None:
    whole = complete(at, max_tokens=12).choices[0].text
    cut = complete(at, max_tokens=12, stop=[whole[2:4]]).choices[0].text
    assert whole.startswith(cut)
    assert whole[2:4] not in cut


def echo(at: At) -> None:
    assert complete(at, echo=True).choices[0].text.startswith(PROMPT)


def streamed_echo(at: At) -> None:
    text = "".join(each.choices[0].text for each in complete(at, echo=True, stream=True))
    assert text == complete(at, echo=True).choices[0].text


def echo_with_log_probabilities(at: At) -> None:
    reply = complete(at, echo=True, logprobs=1, max_tokens=1)
    logprobs = reply.choices[0].logprobs
    assert logprobs.token_logprobs[0] is None
    assert len(logprobs.tokens) == reply.usage.prompt_tokens + 1
    assert "".join(logprobs.tokens).startswith(PROMPT)


def echo_of_the_prompt_alone(at: At) -> None:
    reply = complete(at, echo=True, logprobs=1, max_tokens=0)
    assert reply.choices[0].text == PROMPT
    assert reply.usage.completion_tokens == 0
    assert len(reply.choices[0].logprobs.token_logprobs) == reply.usage.prompt_tokens


def best_of_two(at: At) -> None:
    complete(at, best_of=2)


def suffix(at: At) -> None:
    complete(at, suffix="9")


def list_of_models(at: At) -> None:
    assert [each.id for each in client(at).models.list()] == [at.model]


def one_model(at: At) -> None:
    assert client(at).models.retrieve(at.model).id == at.model


def an_unknown_model(at: At) -> None:
    refused(404, "model", lambda: ask(at, model="none"))
    refused(404, "model", lambda: client(at).models.retrieve("none"))


def a_value_out_of_range(at: At) -> None:
    refused(400, "temperature", lambda: ask(at, temperature=9))


def a_field_that_is_unknown(at: At) -> None:
    refused(400, "tempersture", lambda: ask(at, extra_body={"tempersture": 1}))


def a_role_that_is_unknown(at: At) -> None:
    refused(400, "messages[0].role", lambda: ask(at, messages=[{**MESSAGES[0], "role": "king"}]))


def no_messages(at: At) -> None:
    refused(400, "messages", lambda: ask(at, messages=[]))


def a_prompt_over_the_context(at: At) -> None:
    long = [{"role": "user", "content": "17, " * 20_000}]
    try:
        ask(at, messages=long)
    except openai.APIStatusError as error:
        assert error.status_code in (400, 413)
    else:
        raise AssertionError("it was not refused")


def response(at: At) -> None:
    reply = client(at).responses.create(model=at.model, input="Add 17, 25, 8.", temperature=0)
    assert reply.output_text == TOTAL


def streamed_response(at: At) -> None:
    fields = {"model": at.model, "input": "Add 17, 25, 8.", "temperature": 0, "stream": True}
    events = [*client(at).responses.create(**fields)]
    said = [each.delta for each in events if each.type == "response.output_text.delta"]
    assert "".join(said) == TOTAL
    assert events[-1].type == "response.completed"


def response_with_instructions(at: At) -> None:
    more = {"instructions": "Be brief.", "max_output_tokens": 400, "store": False}
    assert client(at).responses.create(model=at.model, input=MESSAGES, **more).output


def earlier_response(at: At) -> None:
    more = {"input": "Go on.", "previous_response_id": "resp_1"}
    client(at).responses.create(model=at.model, **more)


def embeddings(at: At) -> None:
    client(at).embeddings.create(model=at.model, input="text")


def moderation(at: At) -> None:
    client(at).moderations.create(model=at.model, input="text")


def image(at: At) -> None:
    place = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}
    ask(at, messages=[{"role": "user", "content": [place]}])


def audio(at: At) -> None:
    ask(at, modalities=["text", "audio"], audio={"voice": "alloy", "format": "wav"})


def verbosity(at: At) -> None:
    ask(at, verbosity="low")


OTHER = cases(
    *(completion, completions_of_a_list, completion_of_token_ids),
    *(streamed_completion, usage_of_a_streamed_completion),
    *(completion_with_log_probabilities, completion_with_a_stop),
    *(echo, streamed_echo, echo_with_log_probabilities, echo_of_the_prompt_alone),
    *(best_of_two, suffix, list_of_models, one_model, an_unknown_model),
    *(a_value_out_of_range, a_field_that_is_unknown, a_role_that_is_unknown, no_messages),
    *(a_prompt_over_the_context, response, streamed_response, response_with_instructions),
    *(earlier_response, embeddings, moderation, image, audio, verbosity),
)
REFUSED_OTHER = {
    "best of two": "a choice among several outputs is the client's: ask for `n`",
    "suffix": "no served model fills in the middle",
    "earlier response": "nothing is stored: the client sends what came before",
    "embeddings": "a server of chats and completions alone",
    "moderation": "a server of chats and completions alone",
    "image": "served models read text alone",
    "audio": "served models write text alone",
}

"""What the gateway reads of a model's folder, and how it renders chats."""

from __future__ import annotations

import json
import subprocess
import sys
from datetime import datetime, timedelta, timezone
from pathlib import Path

import pytest

from headway.errors import Code, HeadwayError
from services.gateway.api_call import ChatEnd
from services.gateway.model_files import read_model
from services.gateway.openai.chat_template import MOST_STEPS, ChatTemplate
from services.gateway.openai.foreign_template import environment, render_foreign
from services.gateway.tokenizer import TextCodec
from tests.fakes.tiny_model import END, MODEL_LEN, write_model


def test_a_folder_gives_name_lengths_and_template(tmp_path: Path) -> None:
    files = read_model(str(write_model(tmp_path / "tiny")))
    assert (files.name, files.max_model_len, files.vocab_size) == ("tiny", MODEL_LEN, 261)
    assert files.template is not None
    assert read_model(str(tmp_path / "tiny"), "other").name == "other"


def test_generation_defaults_are_the_models(tmp_path: Path) -> None:
    generation: dict[str, object] = {
        "temperature": 0.6,
        "top_k": 20,
        "do_sample": True,
        "max_new_tokens": 50,
    }
    files = read_model(str(write_model(tmp_path, generation=generation)))
    assert files.sampling_defaults == {"temperature": 0.6, "top_k": 20}
    assert files.max_new_tokens == 50


def test_a_model_that_says_do_not_sample_is_greedy(tmp_path: Path) -> None:
    files = read_model(str(write_model(tmp_path, generation={"do_sample": False})))
    assert files.sampling_defaults == {"temperature": 0.0}


def test_a_template_may_be_a_file_of_its_own_or_one_of_several(tmp_path: Path) -> None:
    folder = write_model(tmp_path)
    named = [{"name": "tool", "template": "t"}, {"name": "default", "template": "d"}]
    (folder / "tokenizer_config.json").write_text(json.dumps({"chat_template": named}))
    template = read_model(str(folder)).template
    assert template is not None
    assert template.render([], {}) == "d"
    (folder / "chat_template.jinja").write_text("own")
    template = read_model(str(folder)).template
    assert template is not None
    assert template.render([], {}) == "own"


def test_a_model_that_is_nowhere_is_refused_by_name() -> None:
    with pytest.raises(HeadwayError, match="/no/such/folder"):
        read_model("/no/such/folder")


def test_a_folder_without_a_fast_tokenizer_is_refused_with_the_way_out(tmp_path: Path) -> None:
    with pytest.raises(HeadwayError, match="save_pretrained"):
        TextCodec.load(tmp_path)


def test_special_tokens_in_a_template_become_single_ids(tmp_path: Path) -> None:
    folder = write_model(tmp_path)
    codec = TextCodec.load(folder)
    assert codec.encode("a<|end|>", add_special_tokens=False) == (97, END)


def test_token_ids_beyond_the_vocabulary_are_refused(tmp_path: Path) -> None:
    codec = TextCodec.load(write_model(tmp_path), vocab_size=300)
    codec.check_ids((0, 299), "prompt")
    with pytest.raises(HeadwayError, match="prompt is 300"):
        codec.check_ids((0, 300), "prompt")


def test_templates_have_what_transformers_gives_them() -> None:
    source = (
        "{{ bos_token }}{% for m in messages %}{% if loop.index > 1 %}{% break %}{% endif %}"
        "{{ {'é': m.content} | tojson }}{% endfor %}{% generation %}x{% endgeneration %}"
        "{{ strftime_now('%Y') | length }}{{ add_generation_prompt }}"
    )
    template = ChatTemplate(source, {"bos_token": "<s>"})
    assert template.render([{"content": "a"}, {"content": "b"}], {}) == '<s>{"é": "a"}x4True'


def test_what_a_template_does_not_take_is_refused_in_its_words() -> None:
    template = ChatTemplate("{{ raise_exception('roles must alternate') }}", {})
    with pytest.raises(HeadwayError, match="roles must alternate") as caught:
        template.render([], {})
    assert caught.value.param == "messages"


def test_a_template_cannot_leave_its_sandbox() -> None:
    template = ChatTemplate("{{ ''.__class__.__mro__[1].__subclasses__() }}", {})
    with pytest.raises(HeadwayError, match="unsafe"):
        template.render([], {})


@pytest.mark.parametrize(
    "source",
    [
        "{% for i in range(9999) %}{% for j in range(9999) %}{% endfor %}{% endfor %}",
        "{% macro f(n) %}{% if n %}{{ f(n-1) }}{{ f(n-1) }}{% endif %}{% endmacro %}{{ f(60) }}",
        "{% for m in [1, 2] recursive %}{% if loop.depth < 60 %}{{ loop([1, 2]) }}{% endif %}"
        "{% endfor %}",
    ],
)
def test_a_template_that_loops_for_ever_is_refused(source: str) -> None:
    template = ChatTemplate(source, {})
    for _ in range(2):
        with pytest.raises(HeadwayError, match=f"more than {MOST_STEPS} turns of its loops"):
            template.render([], {})


@pytest.mark.parametrize(
    ("source", "said"),
    [
        ("{{ 'a' * 10 ** 10 }}", "a product is longer than"),
        ("{{ 10 ** 10 * [1] }}", "a product is longer than"),
        ("{{ 9 ** 99999999 }}", "a power is beyond"),
    ],
)
def test_a_template_that_would_fill_the_memory_is_refused(source: str, said: str) -> None:
    with pytest.raises(HeadwayError, match=said):
        ChatTemplate(source, {}).render([], {})


def foreign(source: str) -> str:
    return render_foreign(
        source, {"eos_token": "."}, [{"content": "ü\ud83d"}], {"n": 3}, (), ChatEnd.ANSWER
    )


def test_a_clients_own_template_is_rendered_in_a_process_of_its_own() -> None:
    source = "{{ messages[0].content }}{{ n }}{{ eos_token }}{{ add_generation_prompt }}"
    assert foreign(source) == "ü\ud83d3.True"


def test_its_process_leaves_the_memory_to_the_template_on_a_machine_of_many_cores() -> None:
    source = (
        "import services.gateway.openai.foreign_template as each, pathlib, sys;"
        "sys.exit('Threads:\\t1\\n' not in pathlib.Path('/proc/self/status').read_text())"
    )
    done = subprocess.run([sys.executable, "-P", "-c", source], env=environment(), check=False)
    assert done.returncode == 0


def test_its_process_has_the_gateways_time_and_none_of_its_passwords(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("HEADWAY_SECRET", "pst")
    monkeypatch.setenv("TZ", "East-12")
    there = datetime.now(timezone(timedelta(hours=12))).replace(tzinfo=None)
    stamp = datetime.fromisoformat(foreign("{{ strftime_now('%Y-%m-%dT%H:%M:%S') }}"))
    assert abs(stamp - there) < timedelta(hours=1)
    assert "pst" not in environment().values()


def test_without_a_process_for_it_a_template_is_for_later(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", "/nowhere/python")
    with pytest.raises(HeadwayError, match="no process can be started") as caught:
        foreign("{{ 1 }}")
    assert caught.value.code is Code.UNAVAILABLE


@pytest.mark.parametrize(
    ("source", "said"),
    [
        ("{% set s = namespace(x='ab') %}" + "{% set s.x = s.x ~ s.x %}" * 40, "more than 512 MiB"),
        ("{{ 'x' | center(4000000000) }}", "more than 512 MiB"),  # as it is compiled
        ("{{ 'x' | center(9000000) }}", "more than 8388608 characters"),
        ("{{ 1 }", "chat_template is no template"),
        ("{{ raise_exception('no') }}", "the model's chat template does not take these messages"),
    ],
)
def test_a_clients_own_template_has_bounds_of_memory(source: str, said: str) -> None:
    with pytest.raises(HeadwayError, match=said) as refused:
        foreign(source)
    assert refused.value.code is Code.INVALID_ARGUMENT


def test_loops_that_are_counted_are_loops_as_before() -> None:
    source = (
        "{% for x in 'abc' %}{{ loop.index }}{{ x }}{{ loop.last }} {% endfor %}{{ 'x' * 2 }}"
        "{% for x in nothing %}{% else %}none{% endfor %}"
        "{% for x in [1, [2]] recursive %}{{ loop(x) if x is iterable else x }}{% endfor %}"
    )
    assert ChatTemplate(source, {}).render([], {}) == "1aFalse 2bFalse 3cTrue xxnone12"


def test_template_options_may_not_replace_what_the_gateway_says() -> None:
    with pytest.raises(HeadwayError, match="messages"):
        ChatTemplate("", {}).render([], {"messages": []})


def test_the_gateway_starts_without_torch_and_transformers() -> None:
    code = (
        "import sys, services.gateway.service\n"
        "assert not {'torch', 'transformers'} & set(sys.modules), 'heavy import'"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)

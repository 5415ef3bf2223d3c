"""The documentation names files, links, commands and words that exist, in short sentences."""

from __future__ import annotations

import ast
import io
import re
import shlex
from contextlib import redirect_stderr, redirect_stdout
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from itertools import takewhile
from pathlib import Path
from statistics import mean

import pytest
from pydantic_settings import BaseSettings

from cli import main
from headway_vllm.inside import UNTRIED
from headway_vllm.settings import SETTING
from services.runtime import failpoints

ROOT = Path(__file__).parents[1]
PAGES = [
    ROOT / "README.md",
    ROOT / "CHANGELOG.md",
    ROOT / "CONTRIBUTING.md",
    ROOT / "models/README.md",
    *sorted((ROOT / "docs").glob("*.md")),
]
ROOMS = (
    "",
    "headway",
    "headway/core/worker",
    "headway/sim",
    "services",
    "services/gateway",
    "services/worker",
    "services/worker/engine",
    "deploy/kubernetes",
    "deploy/kubernetes/base",
    "tests",
)
"""Where a path in a page may begin."""
SOURCES = (
    "headway",
    "services",
    "results",
    "bench",
    "studies",
    "planning",
    "proof",
    "cli",
    "protos",
)
MEAN_WORDS, MOST_WORDS, MOST_COLUMNS = 16, 40, 120

every_page = pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)


def code(text: str) -> list[str]:
    """Return the fenced blocks, without their fences."""
    return re.findall(r"^```[a-z]*\n(.*?)^```", text, re.M | re.S)


def without_code(text: str) -> str:
    return re.sub(
        r"^```.*?^```", "", re.sub(r"<!--.*?-->", "", text, flags=re.S), flags=re.M | re.S
    )


def paragraphs(text: str) -> list[str]:
    """Return paragraphs and list items as one line each, without tables, headings and code."""
    found: list[list[str]] = [[]]
    for line in without_code(text).splitlines():
        item = re.match(r" *(?:[-*]|\d+\.) +(.*)", line)
        if (
            not line.strip()
            or line.startswith(("|", "#"))
            or (line.startswith("    ") and not found[-1])
        ):
            found.append([])
        elif item:
            found.append([item[1]])
        else:
            found[-1].append(line.strip())
    return [" ".join(lines) for lines in found if lines]


def sentences(text: str) -> list[str]:
    """Return the sentences of all paragraphs; inline code counts as one word."""
    plain = [re.sub(r"`[^`]*`", "code", paragraph) for paragraph in paragraphs(text)]
    plain = [re.sub(r"\]\([^)]*\)", "]", paragraph) for paragraph in plain]
    return [part for line in plain for part in re.split(r"(?<=[.!?])[*)\"]*\s+", line) if part]


def braces(path: str) -> list[str]:
    """Return the paths that ``a/{b,c}.py`` stands for."""
    found = re.search(r"\{([^}]*)\}", path)
    if not found:
        return [path]
    return [path.replace(found[0], each) for each in found[1].split(",")]


def paths(text: str) -> list[str]:
    """Return what looks like a path of this repository in inline code."""
    spans = re.findall(r"`([^`\n]+)`", without_code(text))
    looks = re.compile(r"[\w{},.*-]+(/[\w{},.*-]+)*(/|\.(py|md|toml|proto|h|cpp|yaml))")
    return [path for span in spans if looks.fullmatch(span) for path in braces(span)]


def exists(path: str, page: Path) -> bool:
    if path.split("/")[0] in MADE:
        return True
    bases = [page.parent, *(ROOT / room for room in ROOMS)]
    return any(next(base.glob(path), None) is not None for base in bases)


MADE = {"run", "dist", ".", "mini.toml", "edf.py", "predictor", "prometheus.json"}
"""Files and folders that a command makes, and the reader's own."""


@every_page
def test_a_path_that_a_page_names_exists(page: Path) -> None:
    missing = [path for path in paths(page.read_text()) if not exists(path, page)]
    assert not missing


@every_page
def test_a_relative_link_resolves(page: Path) -> None:
    links = re.findall(r"\]\(([^)#\s]+)\)", without_code(page.read_text()))
    local = [link for link in links if "://" not in link]
    assert [link for link in local if not (page.parent / link).exists()] == []


@every_page
def test_sentences_are_short_and_lines_fit(page: Path) -> None:
    text = page.read_text()
    lengths = {sentence: len(sentence.split()) for sentence in sentences(text)}
    assert [sentence for sentence, length in lengths.items() if length > MOST_WORDS] == []
    assert mean(lengths.values()) <= MEAN_WORDS
    lines = without_code(text).splitlines()
    assert [x for x in lines if len(x) > MOST_COLUMNS and not x.startswith(("|", "#"))] == []


@cache
def help_of(words: tuple[str, ...]) -> str | None:
    """Return what ``headway WORDS --help`` prints, None if there is no such subcommand."""
    printed = io.StringIO()
    with redirect_stdout(printed), redirect_stderr(io.StringIO()), pytest.raises(SystemExit) as end:
        main([*words, "--help"])
    return None if end.value.code else printed.getvalue()


def unknown_words(line: str) -> list[str]:
    """Return the subcommand or the flags of a ``headway …`` line that do not exist."""
    words = shlex.split(line.replace("…", ""), comments=True)[1:]
    named = tuple(takewhile(lambda word: not word.startswith("-"), words))
    flags = [word.split("=")[0] for word in words if word.startswith("--")]
    if named[:1] in (("service",), ("picker",)):  # they read their flags themselves
        return [flag for flag in flags if variable(f"service.{flag[2:]}") not in options()]
    printed = help_of(named)
    if printed is None:
        return list(named)
    return [flag for flag in flags if flag not in printed and variable(flag) not in options()]


def variable(flag: str) -> str:
    """Return the environment variable of a flag of one service (``--worker.host-kv-gib``)."""
    return f"HEADWAY_{flag.partition('.')[2].upper().replace('-', '_')}"


@every_page
def test_a_headway_command_in_an_example_exists(page: Path) -> None:
    blocks = [line for block in code(page.read_text()) for line in block.splitlines()]
    indented = re.findall(r"^    (headway .*)$", page.read_text(), re.M)
    found = [re.search(r"(?:^|/|\s)(headway [a-z].*)", line) for line in (*blocks, *indented)]
    lines = [match[1] for match in found if match and "starting" not in match[1]]
    assert [(line, unknown_words(line)) for line in lines if unknown_words(line)] == []


@every_page
def test_an_example_in_python_imports_what_exists(page: Path) -> None:
    for block in re.findall(r"^```python\n(.*?)^```", page.read_text(), re.M | re.S):
        for node in ast.walk(ast.parse(block)):
            if isinstance(node, ast.Import | ast.ImportFrom):
                exec(ast.unparse(node), {})


@every_page
def test_a_make_target_or_module_that_a_page_names_exists(page: Path) -> None:
    text = page.read_text()
    named = "\n".join([*code(text), *re.findall(r"`([^`\n]+)`", text)])
    targets = re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.M)
    assert set(re.findall(r"^make ([a-z][a-z-]*)", named, re.M)) <= set(targets)
    modules = set(re.findall(r"-m ((?:services|bench|planning|cli|models|protos)[\w.]*)", named))
    assert [module for module in modules if find_spec(module) is None] == []


@cache
def options() -> frozenset[str]:
    """Return the names of the services' options, as their environment variables spell them."""
    found = set()
    for path in (ROOT / "services").glob("*/config.py"):
        module = import_module(f"services.{path.parent.name}.config")
        for kind in vars(module).values():
            if isinstance(kind, type) and issubclass(kind, BaseSettings):
                found |= {f"HEADWAY_{name.upper()}" for name in kind.model_fields}
    return frozenset(found | {failpoints.VARIABLE, SETTING, UNTRIED})


@every_page
def test_an_environment_variable_that_a_page_names_exists(page: Path) -> None:
    assert set(re.findall(r"HEADWAY_[A-Z_]+", page.read_text())) - options() == set()


def glossary() -> list[str]:
    return re.findall(r"^\| \*\*(.+?)\*\*", (ROOT / "docs/glossary.md").read_text(), re.M)


def test_the_glossary_is_sorted_and_says_each_word_once() -> None:
    words = [word.lower() for word in glossary()]
    assert len(words) > 40
    assert words == sorted(set(words))


def test_every_word_of_the_glossary_is_used_in_the_code() -> None:
    files = [path for room in SOURCES for path in (ROOT / room).rglob("*.py")]
    source = re.sub(r"[_\-\s]+", " ", " ".join(path.read_text() for path in files)).lower()
    assert [w for w in glossary() if re.sub(r"[_\-\s]+", " ", w).lower() not in source] == []

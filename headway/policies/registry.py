"""Every policy by its question and its name: what flags, tests and reports call them.

A policy registers itself: its file holds ``ANSWER = Answer(...)``. The file lies in the folder of
its question, or is named by an entry point ``QUESTION.NAME`` of the group ``headway.policies`` in
another distribution, or is given by its path (``./edf.py``) in place of a name.
"""

from __future__ import annotations

import pkgutil
import sys
from collections.abc import Mapping
from functools import cache
from importlib import import_module, util
from importlib.metadata import entry_points
from types import MappingProxyType
from typing import Any

from headway.errors import Code, HeadwayError, invalid
from headway.policies.answer import Answer

_PACKAGE = "headway.policies"
_SUFFIX = ".py"


def _own(question: str) -> dict[str, Answer]:
    """Return the answers in the folder of a question, by name."""
    package = import_module(f"{_PACKAGE}.{question}")
    modules = [import_module(m.name) for m in _modules(package.__path__, package.__name__)]
    answers = [module.ANSWER for module in modules if hasattr(module, "ANSWER")]
    found = {answer.name: answer for answer in sorted(answers, key=lambda answer: answer.name)}
    assert len(found) == len(answers), f"two files of {question} hold one name"
    return found


def _modules(path: Any, name: str) -> list[pkgutil.ModuleInfo]:
    return list(pkgutil.iter_modules(path, f"{name}."))


def _registry() -> dict[str, dict[str, Answer]]:
    folders = _modules(import_module(_PACKAGE).__path__, _PACKAGE)
    questions = [folder.name.rpartition(".")[2] for folder in folders if folder.ispkg]
    found = {question: _own(question) for question in sorted(questions)}
    for entry in sorted(entry_points(group=_PACKAGE), key=lambda entry: entry.name):
        question, _, name = entry.name.partition(".")
        if question not in found or not name or name in found[question]:
            message = (
                f"the entry point {entry.name!r} = {entry.value!r} of the group {_PACKAGE} must be "
                f"QUESTION.NAME with a new name and a question of {', '.join(found)}"
            )
            raise HeadwayError(Code.INVALID_ARGUMENT, message)
        found[question][name] = entry.load()
    return found


REGISTRY: Mapping[str, Mapping[str, Answer]] = MappingProxyType(
    {question: MappingProxyType(answers) for question, answers in _registry().items()}
)


def find(question: str, name: str) -> Answer:
    """Return the answer of that name; HeadwayError with the known ones for another name.

    A name that ends in ``.py`` is the path of a file with an ``ANSWER``.
    """
    answers = REGISTRY.get(question)
    if answers is None:
        raise invalid("policy question", question, f"one of {', '.join(REGISTRY)}")
    answer = _from_file(question, name) if name.endswith(_SUFFIX) else answers.get(name)
    if answer is None:
        raise invalid(question, name, f"one of {', '.join(answers)}, or the path of a .py file")
    return answer


@cache
def _from_file(question: str, path: str) -> Answer:
    """Return the answer that a file holds; HeadwayError where it cannot be loaded."""
    name = f"{_PACKAGE}.{question} {path}"  # no module that an import statement can name
    spec = util.spec_from_file_location(name, path)
    assert spec is not None
    module = sys.modules[name] = util.module_from_spec(spec)
    try:
        assert spec.loader is not None
        spec.loader.exec_module(module)
        answer = module.ANSWER
    except Exception as error:  # it is somebody's own code
        del sys.modules[name]
        where = f"{type(error).__name__}: {error}"
        message = (
            f"{question} {path!r} cannot be loaded ({where}): it must hold ANSWER = Answer(...)"
        )
        raise HeadwayError(Code.INVALID_ARGUMENT, message, param=question) from error
    if not isinstance(answer, Answer):
        raise invalid(f"ANSWER of {path}", answer, "an Answer(name, class, reference, parameters)")
    lacking = [name for name in _asked_of(question) if not hasattr(answer.make, name)]
    if isinstance(answer.make, type) and lacking:
        message = (
            f"{path} holds no policy of {question}: {answer.make.__name__} lacks "
            f"{', '.join(lacking)} (headway/policies/{question}/protocol.py)"
        )
        raise HeadwayError(Code.INVALID_ARGUMENT, message, param=question)
    return answer


def _asked_of(question: str) -> list[str]:
    """Return the names of the methods and class attributes that a policy of a question has."""
    named = "dispatching" if question == "dispatch" else question
    protocol = getattr(import_module(f"{_PACKAGE}.{question}"), named.capitalize())
    return sorted(name for name in vars(protocol) if not name.startswith("_"))


def make(question: str, name: str, **params: object) -> Any:
    """Make a policy by its name with these parameters; HeadwayError as ``find``, or for one."""
    return find(question, name).build(f"{question} {name}", params)

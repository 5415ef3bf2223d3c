"""Every policy by its question and its name: what flags, tests and reports call them.

A policy registers itself: its file holds ``ANSWER = Answer(...)``. The file has the policy's name
and lies in the folder of its question, or is named by an entry point ``QUESTION.NAME`` of the group
``headway.policies`` in another distribution, or is given by its path (``./edf.py``) in place of a
name. The names are known at once; a policy's file is imported when somebody asks for it.
"""

from __future__ import annotations

import pkgutil
import sys
from collections.abc import Callable, Iterator, Mapping
from functools import cache, partial
from importlib import import_module, util
from importlib.metadata import entry_points
from types import MappingProxyType
from typing import Any

from headway.errors import Code, HeadwayError, invalid
from headway.policies.answer import Answer

_PACKAGE = "headway.policies"
_SUFFIX = ".py"
_REGISTERS = "\nANSWER = "


class Answers(Mapping[str, Answer]):
    """The answers to one question by name, each imported at its first use."""

    def __init__(self, loads: Mapping[str, Callable[[], Answer]]) -> None:
        self._loads = loads

    def __getitem__(self, name: str) -> Answer:
        """Return the answer of that name; KeyError for an unknown one."""
        return self._loads[name]()

    def __contains__(self, name: object) -> bool:
        """Return whether there is an answer of that name, without importing it."""
        return name in self._loads

    def __iter__(self) -> Iterator[str]:
        """Yield the names: Headway's own in order, then those of other distributions."""
        return iter(self._loads)

    def __len__(self) -> int:
        """Return the number of answers."""
        return len(self._loads)


def _load(module: str) -> Answer:
    answer: Answer = import_module(module).ANSWER
    return answer


def _folders() -> Mapping[str, Mapping[str, Callable[[], Answer]]]:
    """Return what imports each answer of ours, by question and name."""
    return {
        folder.name.rpartition(".")[2]: _own(folder.name)
        for folder in pkgutil.iter_modules(import_module(_PACKAGE).__path__, f"{_PACKAGE}.")
        if folder.ispkg
    }


def _own(package: str) -> dict[str, Callable[[], Answer]]:
    """Return what imports each answer in the folder of a question, by name."""
    question = package.rpartition(".")[2]
    paths = [f"{path}/{question}" for path in import_module(_PACKAGE).__path__]
    names = [module.name for module in pkgutil.iter_modules(paths) if _registers(module)]
    return {name.replace("_", "-"): partial(_load, f"{package}.{name}") for name in sorted(names)}


def _registers(module: pkgutil.ModuleInfo) -> bool:
    """Return whether a module's source holds an answer; what is compiled holds none."""
    spec = module.module_finder.find_spec(module.name, None)
    assert spec is not None
    source = getattr(spec.loader, "get_source", lambda name: None)(module.name)
    return source is not None and _REGISTERS in source


def _registry() -> dict[str, Answers]:
    loaders = {question: dict(loads) for question, loads in sorted(_folders().items())}
    for entry in sorted(entry_points(group=_PACKAGE), key=lambda entry: entry.name):
        question, _, name = entry.name.partition(".")
        if question not in loaders or not name or name in loaders[question]:
            message = (
                f"the entry point {entry.name!r} = {entry.value!r} of the group {_PACKAGE} must be "
                f"QUESTION.NAME with a new name and a question of {', '.join(loaders)}"
            )
            raise HeadwayError(Code.INVALID_ARGUMENT, message)
        loaders[question][name] = cache(entry.load)
    return {question: Answers(loads) for question, loads in loaders.items()}


REGISTRY: Mapping[str, Answers] = MappingProxyType(_registry())


def find(question: str, name: str) -> Answer:
    """Return the answer of that name; HeadwayError with the known ones for another name.

    A name that ends in ``.py`` is the path of a file with an ``ANSWER``.
    """
    answers = REGISTRY.get(question)
    if answers is None:
        raise invalid("policy question", question, f"one of {', '.join(REGISTRY)}")
    if name.endswith(_SUFFIX):
        return _from_file(question, name)
    if name not in answers:
        raise invalid(question, name, f"one of {', '.join(answers)}, or the path of a .py file")
    return answers[name]


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

"""Profiles: what one model costs on one device, as every service and the simulator read it.

One TOML file per (model, device, dtype, parallelism). The pass-time model is fitted from measured
passes (``headway.cost.fit``), velocities are measured by raising the offered rate until the
output no longer grows (``headway.cost.velocity``). ``headway/profiles/`` holds ready-made ones.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, fields
from importlib import resources
from pathlib import Path
from typing import Any

from headway.cost.buckets import BUCKET_NAMES, Buckets
from headway.cost.pass_time import PassTime
from headway.cost.schema import MAKE_ONE, Profile
from headway.errors import Code, HeadwayError, invalid

__all__ = [
    "MAKE_ONE",
    "Profile",
    "load_profile",
    "parse_profile",
    "profile_names",
    "profile_text",
    "save_profile",
]

_TABLES = ("pass_time", "decode_tokens_per_s", "buckets")


def profile_names() -> list[str]:
    """Return the names of the ready-made profiles."""
    folder = resources.files("headway") / "profiles"
    return sorted(f.name[: -len(".toml")] for f in folder.iterdir() if f.name.endswith(".toml"))


def load_profile(name_or_path: str | Path) -> Profile:
    """Return a ready-made profile by its name, or one from a file.

    HeadwayError where there is none (it says how to make one) or where it cannot be read.
    """
    named = str(name_or_path)
    if named in profile_names():
        text = (resources.files("headway") / "profiles" / f"{named}.toml").read_text("utf-8")
        return parse_profile(text, named)
    path = Path(named)
    if not path.is_file():
        message = (
            f"there is no profile {named!r}: give the path of a profile file or one of "
            f"{', '.join(profile_names())}; {MAKE_ONE} measures one"
        )
        raise HeadwayError(Code.NOT_FOUND, message, param="profile")
    try:
        text = path.read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        message = f"profile {named} cannot be read: {error}"
        raise HeadwayError(Code.INVALID_ARGUMENT, message, param="profile") from error
    return parse_profile(text, named)


# --- reading ------------------------------------------------------------------------------


def parse_profile(text: str, source: str) -> Profile:
    """Return the profile in a TOML text; HeadwayError names ``source`` and what is wrong."""
    try:
        table = tomllib.loads(text)
        return _profile(table)
    except tomllib.TOMLDecodeError as error:
        message = f"profile {source} is not TOML: {error}"
        raise HeadwayError(Code.INVALID_ARGUMENT, message, param="profile") from error
    except HeadwayError as error:
        message = f"profile {source}: {error.message}; correct it, or make one with {MAKE_ONE}"
        raise HeadwayError(error.code, message, param=error.param) from error


def _profile(table: dict[str, Any]) -> Profile:
    _require_keys(table, tuple(f.name for f in fields(Profile)), ())
    given = {name: value for name, value in table.items() if name not in _TABLES}
    given["pass_time"] = PassTime(**_checked(PassTime, _table(table, "pass_time")))
    given["buckets"] = Buckets(**_checked(Buckets, _table(table, "buckets")))
    decode = _table(table, "decode_tokens_per_s")
    if decode:
        _require_keys(decode, BUCKET_NAMES, BUCKET_NAMES)
        given["decode_tokens_per_s"] = [_number(name, decode[name]) for name in BUCKET_NAMES]
    return Profile(**_checked(Profile, given))


def _table(table: Mapping[str, Any], name: str) -> dict[str, Any]:
    value = table.get(name, {})
    if not isinstance(value, dict):
        raise invalid(name, value, f"a table: [{name}]")
    return value


def _checked(kind: type, given: dict[str, Any]) -> dict[str, Any]:
    """Return the given fields, each of its type, none missing and none unknown."""
    known = {f.name: f for f in fields(kind) if f.init}
    needed = [
        f.name for f in known.values() if f.default is MISSING and f.default_factory is MISSING
    ]
    _require_keys(given, tuple(known), needed)
    return {name: _typed(name, value, str(known[name].type)) for name, value in given.items()}


def _require_keys(given: Mapping[str, Any], known: Sequence[str], needed: Sequence[str]) -> None:
    for name in given:
        if name not in known:
            raise invalid("a key", name, f"one of {', '.join(known)}")
    for name in needed:
        if name not in given:
            raise invalid(name, "missing", "given: a profile leaves nothing to chance")


def _typed(name: str, value: Any, kind: str) -> Any:
    if kind.startswith("str") and not isinstance(value, str):
        raise invalid(name, value, "a text in quotes")
    if kind.startswith("int") and type(value) is not int:
        raise invalid(name, value, "a whole number")
    if kind.startswith("Sequence") and not isinstance(value, list):
        raise invalid(name, value, "a list")
    return _number(name, value) if kind.startswith("float") else value


def _number(name: str, value: Any) -> float:
    if type(value) not in (int, float):
        raise invalid(name, value, "a number")
    try:
        return float(value)
    except OverflowError as error:
        raise invalid(name, value, "a number under 1e308") from error


# --- writing ------------------------------------------------------------------------------


def profile_text(profile: Profile) -> str:
    """Return the profile as TOML; ``parse_profile`` reads an equal one from it."""
    plain = [f.name for f in fields(Profile) if f.name not in _TABLES]
    values = {name: getattr(profile, name) for name in plain}
    lines = [f"{name} = {_toml(v)}" for name, v in values.items() if v is not None]
    lines += ["", "[pass_time]"]
    lines += [f"{f.name} = {_toml(getattr(profile.pass_time, f.name))}" for f in fields(PassTime)]
    if profile.decode_tokens_per_s:
        lines += ["", "[decode_tokens_per_s]"]
        pairs = zip(BUCKET_NAMES, profile.decode_tokens_per_s, strict=True)
        lines += [f"{name} = {_toml(velocity)}" for name, velocity in pairs]
    lines += ["", "[buckets]"]
    lines += [f"input_tokens = {list(profile.buckets.input_tokens)}"]
    lines += [f"output_tokens = {list(profile.buckets.output_tokens)}"]
    return "\n".join(lines) + "\n"


def save_profile(profile: Profile, path: str | Path) -> None:
    """Write it to a file; HeadwayError where that cannot be written."""
    try:
        Path(path).write_text(profile_text(profile), "utf-8")
    except OSError as error:
        message = f"profile {path} cannot be written: {error}"
        raise HeadwayError(Code.INVALID_ARGUMENT, message, param="profile") from error


def _toml(value: str | float) -> str:
    if not isinstance(value, str):
        return repr(value)
    escaped = value.replace("\\", "\\\\").replace('"', '\\"')
    control = {c: f"\\u{c:04x}" for c in (*range(32), 127)}
    return '"' + escaped.translate(control) + '"'

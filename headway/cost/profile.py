"""Profiles: what one model costs on one device, as every service and the simulator read it.

One TOML file per (model, device, dtype, parallelism). The pass-time model is fitted from measured
passes (``headway.cost.fit``), and velocities follow from it (``headway.cost.velocity``).
``headway/profiles/`` holds ready-made ones.
"""

from __future__ import annotations

from dataclasses import fields
from functools import lru_cache
from importlib import resources
from pathlib import Path
from typing import Any

from headway.cost.buckets import BUCKET_NAMES
from headway.cost.pass_time import PassTime
from headway.cost.schema import MAKE_ONE, Profile
from headway.errors import Code, HeadwayError
from headway.tables import number, parse, read, refuse_others

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


@lru_cache(maxsize=16)
def parse_profile(text: str, source: str) -> Profile:
    """Return the profile in a TOML text; HeadwayError names ``source`` and what is wrong."""
    table = parse(text, f"profile {source}", "profile")
    try:
        return _profile(table)
    except HeadwayError as error:
        message = f"profile {source}: {error.message}; correct it, or make one with {MAKE_ONE}"
        raise HeadwayError(error.code, message, param=error.param) from error


def _profile(table: dict[str, Any]) -> Profile:
    decode = table.get("decode_tokens_per_s")
    if decode is not None:
        refuse_others("decode_tokens_per_s", decode, BUCKET_NAMES)
        velocities = [number(name, decode.get(name, "missing")) for name in BUCKET_NAMES]
        table["decode_tokens_per_s"] = velocities if decode else []
    return read(Profile, table)


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

"""``headway up --autoscale``: what it starts, and what it refuses."""

from __future__ import annotations

from pathlib import Path

import pytest

from cli import up
from headway.cost.profile import load_profile
from headway.errors import HeadwayError
from services.autoscaler.config import AutoscalerConfig
from services.local.options import ClusterOptions, process_specs, worker_spec
from services.local.refusals import refuse_wrong_options
from services.local.store import free_port
from services.runtime.config import load_config
from services.scheduler.config import SchedulerConfig


def parsed(*flags: str) -> ClusterOptions:
    return up.parse([*flags])


def refuse(*flags: str) -> None:
    port = free_port(2)
    refuse_wrong_options(parsed("--port", str(port), *flags), Path("run"))


def autoscaler(*flags: str) -> AutoscalerConfig:
    """The autoscaler's configuration as these flags make it."""
    specs = process_specs(parsed(*flags), num_cores=4)
    spec = next(spec for spec in specs if spec.service == "autoscaler")
    return load_config(AutoscalerConfig, spec.flags)


def test_without_it_what_is_started_is_what_there_is() -> None:
    config = autoscaler("--prefill", "3", "--preset", "tokenscale")
    assert (config.actuator, config.chosen().scaling, config.num_prefill) == ("none", "fixed", 3)


def test_with_it_the_supervisor_is_asked_within_bounds() -> None:
    config = autoscaler("--autoscale", "--max-decode", "6", "--budget", "7")
    assert (config.actuator, config.chosen().scaling) == ("process", "blitzscale")
    assert (config.max_decode, config.budget) == (6, 7)


def test_the_presets_policy_scales_where_it_can() -> None:
    flags = ("--autoscale", "--preset", "tokenscale", "--profile", "llama-8b-a100")
    assert autoscaler(*flags).scaling_policy().name == "tokenscale"
    refuse(*flags)


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (("--preset", "tokenscale"), "tokenscale needs to know what this machine carries"),
        (("--unified", "1"), "leave --unified out"),
        (("--policy", "scaling=nonsense"), "nonsense"),
        (("--set", "scaling"), "--set is 'scaling'; it must be QUESTION.PARAMETER=VALUE"),
        (("--set", "scaling.windoow=1"), "windoow"),
    ],
)
def test_what_cannot_be_scaled_is_refused(flags: tuple[str, ...], said: str) -> None:
    with pytest.raises(HeadwayError, match=said):
        refuse("--autoscale", *flags)


def test_a_profile_drives_the_scaling_the_routing_and_the_convertible_chunk() -> None:
    flags = ("--autoscale", "--preset", "tokenscale", "--profile", "llama-8b-a100")
    args = parsed(*flags, "--convertible", "1")
    refuse(*flags, "--convertible", "1")
    specs = {spec.service_id: spec for spec in process_specs(args, num_cores=4)}
    profile = load_profile("llama-8b-a100")
    routing = load_config(SchedulerConfig, specs["scheduler"].flags).settings()
    assert routing.dispatch_params["profile"] == profile
    chunk = profile.convertible_chunk_tokens
    for name in ("convertible-1", "decode-1"):  # a decoder may become convertible
        own = specs[name].flags
        assert own[own.index("--convertible-chunk-tokens") + 1] == str(chunk)
        assert "--chunk-tokens" not in own
    assert autoscaler(*flags).scaling_policy().params["profile"] == profile


def test_a_profile_alone_asks_for_the_policy_that_reads_it() -> None:
    flags = ("--autoscale", "--profile", "llama-8b-a100")
    assert autoscaler(*flags).chosen().scaling == "tokenscale"
    assert autoscaler(*flags, "--policy", "scaling=aibrix").chosen().scaling == "aibrix"


def test_a_worker_that_comes_later_is_like_those_that_were_started() -> None:
    args = parsed("--preset", "pascal", "--device", "cuda")
    specs = process_specs(args, num_cores=6, num_gpus=2)
    first = next(spec for spec in specs if spec.service_id == "decode-1")
    later = worker_spec(args, "decode", "decode-3", 3, 6, 2)
    changed = {a: b for a, b in zip(first.flags, later.flags, strict=True) if a != b}
    assert (later.role, later.service, changed) == ("decode", "worker", {})
    assert "cuda:1" in later.flags


@pytest.mark.parametrize(
    ("flags", "num_gpus", "share"),
    [
        (("--device", "cuda", "--prefill", "1", "--decode", "1"), 1, "0.5"),
        (("--device", "cuda", "--prefill", "1", "--decode", "2"), 2, "0.5"),
        (("--device", "cuda:1", "--prefill", "1", "--decode", "3"), 0, "0.25"),
        (("--device", "cuda", "--prefill", "1", "--decode", "1"), 2, None),
        (("--prefill", "1", "--decode", "1"), 0, None),
        (("--device", "cuda", "--autoscale", "--max-prefill", "2", "--max-decode", "2"), 1, "0.25"),
    ],
)
def test_workers_on_one_gpu_are_told_their_share_of_its_memory(
    flags: tuple[str, ...], num_gpus: int, share: str | None
) -> None:
    specs = process_specs(parsed(*flags), num_cores=4, num_gpus=num_gpus)
    for spec in specs:
        told = dict(zip(spec.flags, spec.flags[1:], strict=False)).get("--gpu-share")
        assert told == (share if spec.service == "worker" else None)

"""A machine as measured: a profile, the costs of hops, and the passes behind them.

Three files beside each other: ``mine.toml`` is a profile like any other, ``mine.hops.toml`` has
the hops' costs, as a scenario names them, and ``mine.passes.json`` the rest.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from headway.cost.fit import Fit, MeasuredPass
from headway.cost.pass_time import Share
from headway.cost.profile import Profile, load_profile, save_profile
from headway.errors import Code, HeadwayError
from headway.sim.hop_costs import HopCosts
from headway.sim.hops import hops_text, load_hops
from headway.sim.network import NetworkParams
from headway.sim.pace import MeasuredPace
from planning.profile.live import TORCH, LiveEngine, LiveModel
from planning.profile.model import WorkerRecord, fit_profile, measured_pace
from planning.profile.spans import MeasuredHops

_DIGITS = 8  # of a pass's seconds


@dataclass(frozen=True, slots=True)
class Fitted:
    """How a profile was fitted: its errors, and the greatest of each term in any pass."""

    num_passes: int
    median_error: float
    p95_error: float
    standard_errors: Mapping[str, float]
    most: Share

    def share_outside(self, passes: Sequence[MeasuredPass]) -> float:
        """Return the share of passes that are larger in some term than any that was fitted."""
        outside = sum(
            any(value > most for value, most in zip(each.share, self.most, strict=True))
            for each in passes
        )
        return outside / max(1, len(passes))


@dataclass(frozen=True, slots=True)
class Calibration:
    """A machine in figures; ``worker_latency``: of a message between workers, seconds.

    ``engine``: whose passes were measured.
    """

    profile: Profile
    hops: HopCosts
    worker_latency: float
    max_model_len: int
    fitted: Fitted
    pace: MeasuredPace
    engine: LiveEngine = TORCH

    @classmethod
    def of(
        cls,
        records: Sequence[WorkerRecord],
        measured: MeasuredHops,
        name: str,
        served: LiveModel,
        start_up: float,
    ) -> Calibration:
        """Fit the records of a learning load; ``start_up``: seconds until it was served."""
        passes = [each for record in records for each in record.passes]
        profile, fit = fit_profile(records, name, served.where)
        profile = replace(profile, start_up=start_up)
        if link := measured.link_bytes_per_s:
            velocity = link / profile.kv_bytes_per_token
            profile = replace(profile, link_bytes_per_s=link, network_tokens_per_s=velocity)
        return cls(
            profile,
            measured.hops,
            measured.worker_latency,
            records[0].worker["max_model_len"],
            _fitted(fit, passes),
            measured_pace(records, profile),
            served.engine,
        )

    def network(self) -> NetworkParams:
        """Return the simulated network."""
        return NetworkParams(
            bytes_per_s=self.profile.link_bytes_per_s, latency=self.worker_latency, hops=self.hops
        )

    def save(self, path: Path) -> None:
        """Write the three files; HeadwayError where they cannot be written."""
        rest = {
            "worker_latency": self.worker_latency,
            "max_model_len": self.max_model_len,
            "num_passes": self.fitted.num_passes,
            "median_error": self.fitted.median_error,
            "p95_error": self.fitted.p95_error,
            "standard_errors": dict(self.fitted.standard_errors),
            "most": self.fitted.most._asdict(),
            "work": [round(seconds, _DIGITS) for seconds in self.pace.work],
            "engine": self.engine,
            "seconds": [round(seconds, _DIGITS) for seconds in self.pace.seconds],
        }
        save_profile(self.profile, path)
        try:
            _hops_file(path).write_text(hops_text(self.hops), "utf-8")
            _passes_file(path).write_text(json.dumps(rest) + "\n", "utf-8")
        except OSError as error:
            message = f"calibration {path} cannot be written: {error}"
            raise HeadwayError(Code.INVALID_ARGUMENT, message, param="out") from error

    @classmethod
    def load(cls, path: Path) -> Calibration:
        """Read the three files; HeadwayError where one is missing or cannot be read."""
        profile = load_profile(path)
        try:
            rest = json.loads(_passes_file(path).read_text("utf-8"))
            fitted = Fitted(
                rest["num_passes"],
                rest["median_error"],
                rest["p95_error"],
                rest["standard_errors"],
                Share(**rest["most"]),
            )
            pace = MeasuredPace(rest["work"], rest["seconds"])
            known = rest["worker_latency"], rest["max_model_len"]
            engine = LiveEngine(*rest.get("engine", TORCH))
        except (OSError, ValueError, LookupError, TypeError) as error:
            message = (
                f"{_passes_file(path)} cannot be read ({error}): `headway profile run --out "
                f"{path}` writes it beside the profile"
            )
            raise HeadwayError(Code.FAILED_PRECONDITION, message, param="profile") from error
        return cls(profile, load_hops(_hops_file(path)), *known, fitted, pace, engine)


def _hops_file(path: Path) -> Path:
    return path.with_suffix(".hops.toml")


def _passes_file(path: Path) -> Path:
    return path.with_suffix(".passes.json")


def _fitted(fit: Fit, passes: Sequence[MeasuredPass]) -> Fitted:
    shares = [each.share for each in passes]
    most = Share(*(max(values) for values in zip(*shares, strict=True)))
    return Fitted(fit.num_passes, fit.median_error, fit.p95_error, fit.standard_errors, most)

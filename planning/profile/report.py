"""A calibration and a matrix as people read them."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median

from rich.table import Table

from headway.cost.buckets import BUCKET_NAMES
from headway.cost.profile import Profile
from planning.profile.calibration import Calibration
from planning.profile.check import MOST_MOVED, CaseReport, Overall
from planning.profile.figures import TARGETS
from results.output import make_table

_FEW = 0.01
"""A share of passes beyond those that were fitted that is worth a warning."""


def calibration_lines(calibration: Calibration) -> list[str]:
    """Return the profile's coefficients with their standard errors, and the hops' costs."""
    fitted, times = calibration.fitted, calibration.profile.pass_time
    errors = f"error median {fitted.median_error:.1%}, P95 {fitted.p95_error:.1%} of a pass"
    lines = [f"{fitted.num_passes} passes: {errors}"]
    for term, error in fitted.standard_errors.items():
        lines.append(f"  {term:<20} {1e6 * getattr(times, term):12.4f} µs  ± {error:.1%}")
    most = ", ".join(f"{name} {value}" for name, value in fitted.most._asdict().items())
    lines += [f"  fitted up to {most}", *velocity_lines(calibration.profile)]
    hops = calibration.hops
    costs = {name: getattr(hops, name) for name in ("gateway", "submit", "dispatch", "report")}
    costs |= {"token": hops.token, "between workers": calibration.worker_latency}
    lines.append("hops: " + ", ".join(f"{name} {1e3 * s:.2f} ms" for name, s in costs.items()))
    link = calibration.profile.link_bytes_per_s
    lines.append(f"{hops.cores} cores, {link / 1e6:.0f} MB/s between workers")
    for kind, beside, crowded in (
        ("a decode pass", hops.decode_beside, hops.decode_crowded),
        ("one with prompts", hops.prefill_beside, hops.prefill_crowded),
    ):
        lost = f"{beside:+.0%} for each other worker on a core of its own"
        without = "as cores are shared" if crowded is None else f"{crowded:+.0%}"
        lines.append(f"{kind} takes {lost}, {without} for each without one")
    each = f"{hops.per_request:+.2%} for each request/s"
    wait = f"a message waits {1e3 * hops.wait:.2f} ms for each worker that leaves no core free"
    lines.append(f"{each}; {wait}")
    return lines


def velocity_lines(profile: Profile) -> list[str]:
    """Return what an instance releases, its chunk as a convertible decoder, and its start-up."""
    network, chunk = profile.network_tokens_per_s, profile.convertible_chunk_tokens
    v_n = "unknown" if network is None else f"{network:,.0f}"
    pairs = zip(BUCKET_NAMES, profile.decode_tokens_per_s, strict=True)
    v_d = ", ".join(f"{name} {velocity:,.0f}" for name, velocity in pairs)
    lines = [f"V_P {profile.prefill_tokens_per_s:,.0f}, V_N {v_n}, V_D {v_d} tokens/s"]
    if chunk is None:
        lines.append("no convertible chunk: decoding alone is over the TPOT SLO")
    else:
        v_conv = profile.convertible_tokens_per_s
        lines.append(f"a convertible chunk of {chunk} tokens, V_conv {v_conv:,.0f} tokens/s")
    lines.append(f"start-up {profile.start_up:.1f} s")
    return lines


def case_table(report: CaseReport) -> Table:
    """Return the errors of one case by figure: signed medians of its valid repeats."""
    rows = []
    for name in TARGETS:
        total = [each.total[name] for each in report.valid if name in each.total]
        structure = [each.structure[name] for each in report.valid if name in each.structure]
        spans = [each.interval[name] for each in report.valid if name in each.interval]
        if not structure:
            continue
        low, high = min(low for low, _ in spans), max(high for _, high in spans)
        rows.append(
            (
                *(name, f"{median(total):+.1%}", f"{median(total) - median(structure):+.1%}"),
                *(f"{median(structure):+.1%}", f"{low:+.1%} to {high:+.1%}"),
                *(f"{max(map(abs, structure)):.1%}", _share(report.floor[name])),
            )
        )
    titles = ("error", "in all", "level", "structure", "90 % interval", "worst", "live to live")
    levels = ", ".join(
        f"{each.level:.3f}{' VOID' if each.is_void else ''}" for each in report.repeats
    )
    title = f"{report.name}: {report.rate:.1f} requests/s, level {levels}"
    return make_table(titles, rows, title=title, title_justify="left")


def case_notes(report: CaseReport) -> list[str]:
    """Return the errors that an operator reads, and what is wrong with a case."""
    lines = []
    if valid := report.valid:
        attainment = median(each.attainment for each in valid)
        moves = median(each.moves for each in valid)
        live = median(each.num_moves for each in valid)
        gpu_seconds = median(each.gpu_seconds for each in valid)
        lines.append(
            f"SLO attainment {attainment:+.1f} points, moves {moves:+.1f} of {live:g}, "
            f"GPU-seconds {gpu_seconds:+.1%}"
        )
    for number, each in enumerate(report.repeats, start=1):
        if each.is_void:
            lines.append(
                f"run {number} is void: passes took {each.level:.2f} times what was fitted, and "
                f"at most {MOST_MOVED:.0%} may lie between"
            )
        if each.num_failed:
            lines.append(f"run {number}: {each.num_failed} requests failed and count nowhere")
    outside = max(each.outside for each in report.repeats)
    if outside > _FEW:
        lines.append(
            f"{outside:.0%} of its passes are larger than any that was fitted: "
            "the prediction extrapolates"
        )
    return lines


def overall_table(overall: Sequence[Overall]) -> Table:
    """Return the errors over all cases, without signs, beside the targets and the floor."""
    rows = [
        (
            *(each.name, f"{each.target:.0%}", _one(each.structure), _one(each.worst)),
            *(_one(each.total), _one(each.floor), _one(each.worst_floor)),
        )
        for each in overall
    ]
    titles = ("error", "target", "structure", "worst", "in all", "live to live", "worst")
    return make_table(titles, rows)


def _share(values: Sequence[float]) -> str:
    return f"{median(values):.1%}" if values else "-"


def _one(value: float | None) -> str:
    return "-" if value is None else f"{value:.1%}"

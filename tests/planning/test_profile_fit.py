"""``headway profile fit``: measured passes in, a profile out."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from cli import main
from headway.cost.passes import parse_passes
from headway.cost.profile import load_profile
from headway.errors import HeadwayError

HEADER = "seconds,prefill_tokens,batch,kv_tokens"


def rows() -> list[tuple[float, int, int, int]]:
    found = []
    for tokens, batch, kv in [(n, 0, 0) for n in (128, 512, 1024, 2048)] + [
        (0, b, b * context) for b in (1, 8, 32, 64) for context in (100, 1000, 3000)
    ]:
        found.append((0.02 + 1e-4 * tokens + 5e-5 * batch + 1e-7 * kv, tokens, batch, kv))
    return found


def test_a_profile_is_fitted_to_passes_and_says_how_well(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    passes, out = tmp_path / "passes.csv", tmp_path / "mine.toml"
    lines = [HEADER, *(",".join(map(str, row)) for row in rows())]
    passes.write_text("\n".join(lines))
    status = main(["profile", "fit", str(passes), "--like", "llama-8b-a100", "--out", str(out)])
    assert status == 0
    assert "R²             1.00000" in capsys.readouterr().out
    found = load_profile(str(out)).pass_time
    assert found.base == pytest.approx(0.02)
    assert found.per_prefill_token == pytest.approx(1e-4)
    assert found.per_request == pytest.approx(5e-5)
    assert found.per_kv_token == pytest.approx(1e-7)


def test_json_lines_hold_a_pass_of_several_units() -> None:
    line = json.dumps({"seconds": 0.1, "units": [{"prefill_tokens": 5}, {"batch": 2}]})
    (measured,) = parse_passes([line], "x")
    assert [share.prefill_tokens for share in measured.shares] == [5, 0]
    assert [share.batch for share in measured.shares] == [0, 2]


@pytest.mark.parametrize(
    ("lines", "says"),
    [
        ([], "empty"),
        (["seconds,speed", "1,2"], "speed"),
        ([HEADER, "0.1,2"], "line 2"),
        ([HEADER, "fast,2,3,4"], "seconds"),
        ([HEADER, "0.1,-2,3,4"], "prefill_tokens"),
        (['{"seconds": 1}'], "units"),
        (["{"], "units"),
    ],
)
def test_what_is_no_pass_is_refused_by_line_and_name(lines: list[str], says: str) -> None:
    with pytest.raises(HeadwayError, match=says):
        parse_passes(lines, "passes")


def test_every_ready_made_profile_tells_where_it_is_from(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["profile", "list"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) >= 10
    assert all(len(line.split(maxsplit=1)) == 2 for line in lines)

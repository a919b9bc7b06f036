"""The short version of `python -m ldaf_bench.simulate`: honest certificates hold, broken ones are caught."""

import pytest

from ldaf_bench.simulate.__main__ import Tally, main, simulate
from ldaf_bench.simulate.chains import AT_LENGTH, VARIANTS

REPEATS = {"honest": 25, "few points": 40, "selection": 60, "leaking prior": 8, "wrong m": 60}


@pytest.mark.parametrize("variant", VARIANTS)
def test_honest_certificates_hold_and_broken_ones_are_caught(variant):
    tallies = simulate(variant, REPEATS[variant])
    assert [tally.verdict for tally in tallies if not tally.as_expected] == []
    assert any(tally.ought_to_hold for tally in tallies) or variant not in AT_LENGTH


@pytest.mark.parametrize(
    ("failures", "ought_to_hold", "verdict"),
    [
        (0, True, "holds"),
        (100, True, "holds"),  # just what ε allows
        (145, True, "FAILS TOO OFTEN"),
        (145, False, "caught"),
        (100, False, "NOT CAUGHT"),
    ],
)
def test_verdicts_over_2000_data_sets(failures, ought_to_hold, verdict):
    assert Tally("x", "kl / bonferroni", 2000, failures, ought_to_hold).verdict == verdict
    assert Tally("x", "kl / mc", 2000, failures, ought_to_hold).allowed == pytest.approx(0.06)


def test_command_prints_a_table_and_reports_by_exit_code(capsys):
    assert main(["--repeats", "12", "--variants", "leaking prior"]) == 0
    out = capsys.readouterr().out
    assert "leaking prior" in out
    assert "caught" in out
    assert main(["--repeats", "1", "--variants", "leaking prior"]) == 1  # one failure proves nothing
    with pytest.raises(SystemExit):
        main(["--repeats", "0"])

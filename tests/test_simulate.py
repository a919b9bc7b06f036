"""The short version of `python -m tools.simulate`: honest claims hold, every mistake is caught."""

import pytest

from ldaf_bench.theory.bounds import BOUNDS
from ldaf_bench.theory.covariances import initial_covariance
from ldaf_bench.theory.integrate import integrate
from ldaf_bench.theory.integrate.sampling import MC
from ldaf_bench.theory.logits import problem
from ldaf_bench.theory.seeds import named_seed
from tools.simulate.__main__ import Tally, main, tally
from tools.simulate.chains import CHAINS, run_chain
from tools.simulate.scenarios import EVERYTHING, trained
from tools.simulate.world import train

SLOW = {
    "honest": 4, "last layer": 8, "weights": 8, "excess": 8, "one draw charged": 8, "leak": 6,
    "integration not paid": 20, "shared draws": 30, "shared weights": 40, "excess not paid": 20,
    "choice paid for": 60, "K not paid": 100,
}  # fmt: skip


@pytest.mark.parametrize("name", CHAINS)
def test_honest_claims_hold_and_every_mistake_is_caught(name):
    repeats = SLOW.get(name, 200)
    tallies = tally(name, [run_chain(name, named_seed(name, k)) for k in range(repeats)])
    assert [(one.claim, one.failures, one.verdict) for one in tallies if not one.as_expected] == []


def test_the_whole_way_covers_every_bound_and_kind_of_classifier():
    for name in ("honest", "last layer", "weights"):
        claims = [claim.name for claim in CHAINS[name].run(0)]
        assert {claim.split(" / ")[0] for claim in claims} == set(BOUNDS), name
        assert len(set(claims)) == len(claims)
    kinds = {made.one.classifier for made in trained(EVERYTHING, 0, False)}
    assert kinds == {"posterior", "prior", "mean"}


def test_true_risk_agrees_with_sampling_of_the_whole_world():
    world = EVERYTHING.world
    data = world.draw(150, 3)
    network = train(world, data, 15, 3)
    gaussian = initial_covariance("code", 6, scale=0.3, seed=3)
    every = world.draw(40_000, 4)  # by the package's own code, which the truth shares nothing with
    sampled = integrate(MC.name, problem(network.pushed_for(every), gaussian, every.labels), num_points=16)
    assert float(sampled.value) == pytest.approx(network.true_risk(world, gaussian), abs=0.01)


@pytest.mark.parametrize(
    ("failures", "honest", "verdict"),
    [
        (0, True, "holds"),
        (100, True, "holds"),  # just what is allowed
        (145, True, "FAILS TOO OFTEN"),
        (145, False, "caught"),
        (100, False, "NOT CAUGHT"),
    ],
)
def test_verdicts_over_2000_data_sets(failures, honest, verdict):
    assert Tally("x", "y", 2000, failures, 0.05, honest).verdict == verdict


def test_command_prints_a_table_and_reports_by_exit_code(capsys):
    assert main(["--repeats", "300", "--chains", "rounded up"]) == 0
    out = capsys.readouterr().out
    assert "rounded up" in out
    assert "holds" in out
    assert main(["--repeats", "1", "--chains", "leak"]) == 1  # one failure proves nothing
    with pytest.raises(SystemExit):
        main(["--repeats", "0"])

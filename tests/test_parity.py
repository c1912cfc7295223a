"""Nothing changed unseen: every method, draft shape and dtype gives the tokens, decisions and costs that are on record (parity.py)."""

import parity
import pytest

DECISIONS = ("tokens", "kinds", "ranks", "drafted", "draft_calls")
ANEW = "If this was meant, record anew with `PYTHONPATH=. python tests/parity.py` and say why."
# Another CPU or build of torch rounds sums otherwise: one run in so many may then part where a number falls between two roundings.
ELSEWHERE = {"tiny float32": 0.02, "tiny bfloat16": 0.25, "meadow float32": 0.04}
CLOSE = {"tiny float32": 2e-6, "tiny bfloat16": 2e-6, "meadow float32": 2e-5}  # of probabilities and costs, in runs of equal decisions


@pytest.mark.parametrize("name", parity.PAIRS)
def test_runs_are_those_on_record(name):
    record = parity.recorded()
    there, now = record[name], parity.all_figures(name)
    assert list(now) == list(there), f"The methods or trees are others than on record. {ANEW}"
    parted, runs = [], 0
    for case in now:
        for seed, (new, old) in enumerate(zip(now[case], there[case], strict=True)):
            runs += 1
            differs = [key for key in DECISIONS if new[key] != old[key]]
            if differs:
                parted.append(f"{case}, seed {seed}: " + "; ".join(f"{key} {old[key]} on record, now {new[key]}" for key in differs))
            elif record["machine"] == parity.machine():
                for key in ("accept_prob", "cost"):
                    assert new[key] == pytest.approx(old[key], abs=CLOSE[name], rel=CLOSE[name]), f"{case}, seed {seed}: {key}. {ANEW}"
    allowed = 0 if record["machine"] == parity.machine() else int(ELSEWHERE[name] * runs)
    assert len(parted) <= allowed, f"{len(parted)} of {runs} runs differ on {parity.machine()}. {ANEW}\n" + "\n".join(parted[:8])


def test_the_record_covers_every_method_and_would_see_a_change():
    record = parity.recorded()
    for name, (variants, limit, _) in parity.PAIRS.items():
        assert {tuple(case.split(" ", 1)) for case in record[name]} == set(parity.cases())
        runs = [run for case in record[name].values() for run in case]
        assert len(runs) == variants * len(parity.cases())
        assert all(len(run["tokens"]) == limit for run in runs)
        letters = {letter for run in runs for letter in run["kinds"]}
        assert letters >= set("sarbA")
        assert max(rank for run in runs for rank in run["ranks"]) > 0
        assert len({tuple(run["tokens"]) for run in runs}) > len(runs) / 3

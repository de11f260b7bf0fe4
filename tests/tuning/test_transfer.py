"""--transfer-from: records of the same workloads are transferred, other trials train the model."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import pytest

from tvmtune import api
from tvmtune.errors import TvmtuneError, UsageError
from tvmtune.records.log import FORMAT, read_log
from tvmtune.tuning import transfer
from tvmtune.tuning.budget import Budget
from tvmtune.types import TRANSFER, Timing

pytestmark = pytest.mark.slow

RGB2YUV = Path(__file__).parents[2] / "examples" / "rgb2yuv.py"
QUICK = Timing(repeat=2)


def plan(width: int = 64) -> api.Plan:
    return api.plan(api.load(str(RGB2YUV), arguments={"w": width, "h": 16}))


@pytest.fixture(scope="module")
def donor(tmp_path_factory) -> Path:
    """Twenty trials of one operator."""
    log = tmp_path_factory.mktemp("donor") / "donor.json"
    api.tune(plan(), log, budget=Budget(trials=20), timing=QUICK, tuner="random")
    return log


def test_records_of_the_same_workload_are_transferred_without_a_trial(donor, tmp_path):
    session = api.tune(
        plan(), tmp_path / "log.json", budget=Budget(trials=3), timing=QUICK, transfer=[donor]
    )
    given = {t.candidate: t for t in read_log(donor).trials if t.ok}
    found = read_log(tmp_path / "log.json").trials
    taken = [t for t in found if t.tuner == TRANSFER]
    each = Counter(t.implementation for t in given.values()).values()
    wanted = sum(min(transfer.MAX_TRANSFERRED, count) for count in each)
    assert session.transferred_records == len(taken) == wanted
    assert all(t.seconds == given[t.candidate].seconds for t in taken)
    fresh = [t for t in found if t.tuner != TRANSFER]
    assert session.new == len(fresh) == 3
    assert not {t.candidate for t in fresh} & {t.candidate for t in taken}


def test_transferred_records_occur_once_and_do_not_count_as_trials(donor, tmp_path):
    log = tmp_path / "log.json"
    for trials in (2, 4):
        session = api.tune(
            plan(), log, budget=Budget(trials=trials), timing=QUICK, transfer=[donor]
        )
        assert session.total == trials
    candidates = [t.candidate for t in read_log(log).trials]
    assert len(candidates) == len(set(candidates)) == session.transferred_records + 4


def test_an_incumbent_from_another_log_is_checked(donor, tmp_path):
    session = api.tune(
        plan(), tmp_path / "log.json", budget=Budget(trials=1), timing=QUICK, transfer=[donor]
    )
    incumbent = session.states[0].incumbent
    assert incumbent is not None
    assert incumbent.verified


def test_another_operator_gets_training_samples_but_no_records(donor, tmp_path):
    session = api.tune(
        plan(32), tmp_path / "log.json", budget=Budget(trials=2), timing=QUICK, transfer=[donor]
    )
    assert session.transferred_records == 0
    assert session.transferred_samples == len([t for t in read_log(donor).trials if t.ok])


def test_times_of_another_device_train_the_model_but_are_never_transferred(donor, tmp_path):
    other = tmp_path / "other.json"
    lines = donor.read_text().splitlines()
    header = json.loads(lines[0])
    mine = header["device"]["identity"]
    header["device"]["model"] = "another CPU"
    header["device"]["identity"] = "f" * 16
    rest = [line.replace(mine, "f" * 16) for line in lines[1:]]
    other.write_text("\n".join([json.dumps(header), *rest]) + "\n")
    session = api.tune(
        plan(), tmp_path / "log.json", budget=Budget(trials=2), timing=QUICK, transfer=[other]
    )
    assert session.transferred_records == 0
    assert session.transferred_samples > 0


def test_a_log_of_another_tvm_is_rejected(donor, tmp_path):
    old = tmp_path / "old.json"
    first, *rest = donor.read_text().splitlines()
    header = json.loads(first)
    header["versions"]["apache-tvm"] = "0.26.0"
    old.write_text("\n".join([json.dumps(header), *rest]) + "\n")
    with pytest.raises(
        TvmtuneError, match=r"old.json was .* apache-tvm 0\.26\.0, and this is 0\.27"
    ):
        api.tune(plan(), tmp_path / "log.json", transfer=[old])
    assert not (tmp_path / "log.json").exists()


def test_the_sessions_own_log_is_rejected(donor):
    before = donor.read_bytes()
    with pytest.raises(UsageError, match="is the log of this run"):
        api.tune(plan(), donor, transfer=[donor])
    assert donor.read_bytes() == before


def test_training_samples_take_limited_time(donor, tmp_path, monkeypatch):
    monkeypatch.setattr(transfer, "REPLAY", 0.0)
    session = api.tune(
        plan(32), tmp_path / "log.json", budget=Budget(trials=2), timing=QUICK, transfer=[donor]
    )
    assert session.transferred_samples == 1, "one of each workload"


def test_a_log_that_is_read_already_is_not_read_again(donor, tmp_path):
    logs = transfer.read([donor], tmp_path / "log.json")
    (again,) = transfer.read(logs, tmp_path / "log.json")
    assert again is logs[0]
    with pytest.raises(UsageError, match="is the log of this run"):
        transfer.read(logs, donor)


def test_a_log_of_a_newer_tvmtune_is_rejected(donor, tmp_path):
    new = tmp_path / "new.json"
    first, *rest = donor.read_text().splitlines()
    header = json.loads(first) | {"format": FORMAT + 1}
    new.write_text("\n".join([json.dumps(header), *rest]) + "\n")
    with pytest.raises(TvmtuneError, match="new.json was written by a newer tvmtune"):
        transfer.read([new], tmp_path / "log.json")

"""The store's contract, the same over in-memory SQLite, an SQLite file and PostgreSQL."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import optuna
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sqlalchemy import event

from db import recording
from db.schema import VERSIONS
from db.store import Store
from perfmodel.errors import RecordError, StorageError
from perfmodel.history import Launch, Study
from perfmodel.records import (
    Configuration,
    Device,
    Facts,
    Failure,
    FailureReason,
    Measurement,
    Memory,
    Software,
    Workload,
)

DEVICE = Device("cpu", "AMD", "EPYC", "Zen 4", 2**38, 64)
SOFTWARE = Software()
WORKLOAD = Workload("step", "train_gpt")
Make = Callable[..., Measurement]
optuna.logging.set_verbosity(optuna.logging.WARNING)


class StoreContract:
    """What every database must do; `url` is a fixture of each subclass."""

    @pytest.fixture
    def store(self, url: str) -> Iterator[Store]:
        with Store.open(url) as store:
            yield store

    def test_starts_empty(self, store: Store) -> None:
        info = store.info()
        assert set(info["counts"].values()) == {0}
        assert info["schema_version"] == VERSIONS[-1]
        assert info["size_bytes"] > 0
        assert store.measurements() == []
        assert store.studies() == []
        assert store.launches() == []
        assert store.models() == []

    def test_what_goes_in_comes_out(
        self, store: Store, any_measurement: st.SearchStrategy[Measurement]
    ) -> None:
        @settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
        @given(any_measurement)
        def comes_out(measurement: Measurement) -> None:
            store.add([measurement])
            back = store.measurement(measurement.address)
            assert back == measurement
            assert back.address == measurement.address
            assert back.to_json() == measurement.to_json()
            assert Measurement.from_json(back.to_json()).address == measurement.address
            assert store.add([back]) == 0

        comes_out()

    def test_adding_twice_adds_nothing(self, store: Store, make_measurement: Make) -> None:
        three = [make_measurement(n) for n in range(3)]
        assert store.add([*three, *three]) == 3
        assert store.add(three) == 0
        assert store.add([*three, make_measurement(3)]) == 1
        assert store.info()["counts"]["measurements"] == 4
        assert store.add([]) == 0

    def test_many_are_added_in_batches(
        self, store: Store, make_measurement: Make, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """What was written before a bad record is kept; the same call goes on from there."""
        monkeypatch.setattr(recording, "BATCH_MEASUREMENTS", 4)
        monkeypatch.setattr(recording, "BATCH_SAMPLES", 9)
        taken: list[int] = []

        def many(bad: int | None) -> Iterator[Measurement]:
            for n in range(10):
                taken.append(n)
                yield make_measurement(
                    n, memory=Memory(resident_bytes=2**63 if n == bad else 1 + n)
                )

        with pytest.raises(RecordError):
            store.add(many(bad=7))
        assert len(taken) == 9  # three to a batch: as many samples as it takes
        assert len(store.measurements()) == 6
        assert store.add(many(bad=None)) == 4
        assert store.measurements() == list(many(bad=None))

    def test_keeps_the_order_of_adding(self, store: Store, make_measurement: Make) -> None:
        order = [5, 2, 9, 1, 7]
        store.add(make_measurement(n) for n in order[:3])
        store.add([make_measurement(n) for n in order])
        assert store.measurements() == [make_measurement(n) for n in order]

    def test_parts_are_kept_once(self, store: Store, make_measurement: Make) -> None:
        store.add([make_measurement(n) for n in range(50)])
        counts = store.info()["counts"]
        assert (counts["devices"], counts["software"], counts["workloads"]) == (1, 1, 1)
        assert counts["configurations"] == 5

    def test_filters(self, store: Store, make_measurement: Make) -> None:
        cpu = Device("cpu", "AMD", "EPYC", "Zen 4", 2**38, 64)
        older = Software(Facts(torch="2.2.0"))
        matmul = Workload("operator", "matmul", Facts(m=1024))
        plain, on_cpu = make_measurement(0), make_measurement(1, device=cpu)
        with_older = make_measurement(2, software=older)
        of_matmul = make_measurement(3, workload=matmul, device=cpu)
        store.add([plain, on_cpu, with_older, of_matmul])
        assert store.measurements(device=cpu) == [on_cpu, of_matmul]
        assert store.measurements(software=older) == [with_older]
        assert store.measurements(workload=matmul) == [of_matmul]
        assert store.measurements(kind="step") == [plain, on_cpu, with_older]
        assert store.measurements(kind="operator", name="matmul") == [of_matmul]
        assert store.measurements(name="train_gpt", device=cpu) == [on_cpu]
        assert store.measurements(kind="kernel") == []
        assert store.measurements(workload=Workload("step", "unknown")) == []

    def test_a_failure_is_kept_with_its_reason(self, store: Store, make_measurement: Make) -> None:
        failures = [
            make_measurement(
                n,
                samples=(),
                failure=Failure(reason, f"why {n}\0\\", -n, f"said {n}\0\udcff"),
            )
            for n, reason in enumerate(FailureReason)
        ]
        assert store.add(failures) == len(FailureReason)
        assert store.measurements() == failures
        assert store.add(store.measurements()) == 0

    def test_values_keep_their_type(self, store: Store, make_measurement: Make) -> None:
        alike = [
            make_measurement(0, configuration=Configuration(x=x))
            for x in (1, 1.0, True, "1", 10**30)
        ]
        assert store.add(alike) == len(alike)
        types = [type(m.configuration["x"]) for m in store.measurements()]
        assert types == [int, float, bool, str, int]

    def test_a_record_that_cannot_be_kept_is_refused_whole(
        self, store: Store, make_measurement: Make
    ) -> None:
        too_large = make_measurement(1, memory=Memory(resident_bytes=2**63))
        with pytest.raises(RecordError, match="resident_bytes is 9223372036854775808"):
            store.add([make_measurement(0), too_large])
        assert store.measurements() == []

    def test_unknown_addresses(self, store: Store) -> None:
        assert store.measurement("00" * 32) is None
        assert store.model("00" * 32) is None
        with pytest.raises(RecordError, match="'best'"):
            store.measurement("best")

    def test_studies(self, store: Store, study: Study) -> None:
        assert store.add_study(study)
        assert not store.add_study(study)
        (back,) = store.studies()
        assert back == study
        assert back.address == study.address

    def test_launches_the_newest_last(
        self, store: Store, make_launch: Callable[..., Launch]
    ) -> None:
        launches = [make_launch(n) for n in range(3)]
        assert store.add_launch(launches[2])
        assert store.add_launch(launches[0])
        assert store.add_launch(launches[1])
        assert not store.add_launch(launches[1])
        assert store.launches() == launches
        assert store.launches(limit=2) == launches[1:]
        assert store.launches(limit=9) == launches
        # A launch brings its study and what it reached.
        assert store.studies() == [launches[0].study]
        assert store.measurements() == [launches[2].achieved, launches[0].achieved]

    def test_a_launch_is_known_from_its_start(
        self, store: Store, make_launch: Callable[..., Launch]
    ) -> None:
        """Recorded when it starts, when it has reached something, and when it has ended."""
        ended = make_launch(0)
        reached = replace(ended, seconds=None, exit_code=None)
        started = replace(reached, achieved=None)
        other = replace(make_launch(1), seconds=None, exit_code=None)
        assert started.address == reached.address == ended.address != other.address
        for state in (started, reached, ended):
            assert store.add_launch(state)
            assert not store.add_launch(state)
            assert store.launches() == [state]
        assert store.add_launch(other)
        assert store.launches() == [ended, other]
        assert [launch.ended for launch in store.launches()] == [True, False]
        # What was known earlier is no news.
        assert not store.add_launch(started)
        assert not store.add_launch(reached)
        assert store.launches(limit=1) == [other]
        counts = store.info()["counts"]
        assert (counts["launches"], counts["launch_outcomes"]) == (2, 2)

    def test_models(self, store: Store) -> None:
        content = bytes(range(256)) * 100
        address = store.add_model(content, kind="trees", trained_on={"workload": "w", "rows": 3})
        same = store.add_model(content, kind="trees", trained_on={"rows": 3, "workload": "w"})
        other = store.add_model(content[1:], kind="roofline", trained_on={})
        assert address == same != other
        assert [m.address for m in store.models()] == [address, other]
        (model,) = store.models(kind="trees")
        assert (model.trained_on, model.size_bytes) == ({"workload": "w", "rows": 3}, 25600)
        assert store.model(address) == content

    def test_several_threads_add_the_same(self, store: Store, make_measurement: Make) -> None:
        batches = [[make_measurement(n) for n in range(start, 40)] for start in (0, 10, 20, 30)]
        batches.append(batches[0][::-1])
        new: list[int] = []

        def work(batch: list[Measurement]) -> None:
            for start in range(0, len(batch), 5):
                new.append(store.add(batch[start : start + 5]))

        threads = [threading.Thread(target=work, args=(batch,)) for batch in batches]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(new) == 8 + 6 + 4 + 2 + 8
        assert sum(new) == 40
        assert len({m.address for m in store.measurements()}) == 40

    def test_optuna_lives_beside_us(self, store: Store, make_measurement: Make) -> None:
        measurement = make_measurement(0)
        optuna_study = optuna.create_study(storage=store.optuna_storage(), study_name="ours")
        trial = optuna_study.ask({"x": optuna.distributions.IntDistribution(0, 9)})
        trial.set_user_attr("measurement", measurement.address)
        store.add([measurement])
        optuna_study.tell(trial, 1.5)
        loaded = optuna.load_study(storage=store.optuna_storage(), study_name="ours")
        assert loaded.best_trial.user_attrs == {"measurement": measurement.address}
        assert store.measurements() == [measurement]

    def test_optuna_errors_are_explained(self, store: Store) -> None:
        storage = store.optuna_storage()
        trial = optuna.create_study(storage=storage).ask()
        with storage.engine.begin() as connection:
            connection.exec_driver_sql("DROP TABLE trial_user_attributes")
        with pytest.raises(StorageError, match="trial_user_attributes"), store.explaining():
            trial.set_user_attr("a", 1)


class Persistent(StoreContract):
    """What a database that outlives its store must do besides."""

    def test_reopened(
        self, url: str, make_measurement: Make, make_launch: Callable[..., Launch]
    ) -> None:
        with Store.open(url) as store:
            store.add([make_measurement(n) for n in range(5)])
            store.add_launch(make_launch(0))
        with Store.open(url, create=False) as store:
            assert store.add([make_measurement(n) for n in range(6)]) == 1
            assert store.launches() == [make_launch(0)]

    def test_two_stores_at_once(self, url: str, make_measurement: Make) -> None:
        with Store.open(url) as one, Store.open(url) as two:
            assert one.add([make_measurement(0)]) == 1
            assert two.add([make_measurement(0), make_measurement(1)]) == 1
            assert one.add([make_measurement(1)]) == 0
            assert one.measurements() == two.measurements()

    def test_opened_by_many_at_once(self, url: str, make_measurement: Make) -> None:
        """All make the tables, ours and Optuna's; each succeeds and finds one set."""
        barrier = threading.Barrier(4)
        problems: list[BaseException] = []

        def work(n: int) -> None:
            try:
                barrier.wait()
                with Store.open(url) as store:
                    store.add([make_measurement(n)])
                    optuna.create_study(storage=store.optuna_storage(), study_name=f"s{n}")
            except BaseException as error:
                problems.append(error)

        threads = [threading.Thread(target=work, args=(n,)) for n in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert problems == []
        with Store.open(url) as store:
            assert len(store.measurements()) == 4
            assert len(optuna.get_all_study_names(store.optuna_storage())) == 4


class TestMemory(StoreContract):
    @pytest.fixture
    def url(self) -> str:
        return ":memory:"

    def test_each_is_its_own(self, make_measurement: Make) -> None:
        with Store.open(":memory:") as one, Store.open("sqlite://") as two:
            one.add([make_measurement(0)])
            assert two.measurements() == []


class TestFile(Persistent):
    @pytest.fixture
    def url(self, tmp_path: Path) -> str:
        return str(tmp_path / "timings.db")

    @pytest.mark.parametrize(
        ("asked", "index"),
        [
            ({"workload": WORKLOAD}, "workload_id=?)"),
            ({"workload": WORKLOAD, "device": DEVICE}, "(workload_id=? AND device_id=?)"),
            (
                {"workload": WORKLOAD, "device": DEVICE, "software": SOFTWARE},
                "(software_id=? AND workload_id=? AND device_id=?)",
            ),
            (
                {"kind": "step", "device": DEVICE, "software": SOFTWARE},
                "(software_id=? AND workload_id=? AND device_id=?)",
            ),
            ({"kind": "step", "name": "a", "device": DEVICE}, "(workload_id=? AND device_id=?)"),
            ({"software": SOFTWARE}, "(software_id=?)"),
        ],
    )
    def test_filters_are_answered_by_an_index(
        self, store: Store, asked: dict[str, Any], index: str
    ) -> None:
        """Every condition that can be is one of the index: millions of rows aren't read."""
        statements: list[tuple[str, Any]] = []
        engine = store._database.engine
        event.listen(
            engine, "before_cursor_execute", lambda c, cu, text, *a: statements.append((text, a[0]))
        )
        store.measurements(**asked)
        (query,) = [s for s in statements if "FROM perfmodel_measurements" in s[0]]
        with engine.connect() as connection:
            plan = connection.exec_driver_sql(f"EXPLAIN QUERY PLAN {query[0]}", query[1]).all()
        (searched,) = [row.detail for row in plan if " perfmodel_measurements" in row.detail]
        assert searched.startswith("SEARCH")
        assert index in searched


class TestPostgres(Persistent):
    @pytest.fixture
    def url(self, postgres_url: str) -> str:
        return postgres_url

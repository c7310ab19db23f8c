"""The measurements of one study in the store: its own, and those that are only history to it."""

from __future__ import annotations

from dataclasses import dataclass

from db.store import Store
from perfmodel.history import Study
from perfmodel.records import Measurement


@dataclass(frozen=True)
class StudyRecords:
    """What a study reads from and adds to the store."""

    store: Store
    study: Study

    def add(self, measurement: Measurement) -> None:
        """Keep one more."""
        self.store.add([measurement])

    def read(self) -> list[Measurement]:
        """All of this workload, device and software, oldest first."""
        study = self.study
        return self.store.measurements(
            device=study.device, software=study.software, workload=study.workload
        )

    def history(self) -> list[Measurement]:
        """Those of the same command on this device under another script version or software."""
        study = self.study
        command = study.workload.parameters["command"]
        return [
            m
            for m in self.store.measurements(
                device=study.device, kind="step", name=study.workload.name
            )
            if m.workload.parameters.get("command") == command
            and (m.workload, m.software) != (study.workload, study.software)
        ]

"""Calibrate a device once per software, and remember."""

from __future__ import annotations

from collectors.calibrate import Calibration, calibrate, tried
from db.store import Store
from perfmodel.records import Device, Measurement, Software


def known_calibration(store: Store, device: Device, software: Software) -> Calibration | None:
    """What earlier calibrations of this device under this software show; None if there is none."""
    return Calibration.from_measurements(
        store.measurements(device=device, software=software, kind="operator")
    )


def needs_calibration(store: Store, device: Device, software: Software) -> bool:
    """Whether it was never tried; what failed once isn't tried at every run."""
    return not tried(store.measurements(device=device, software=software, kind="operator"))


def measure_calibration(
    store: Store, device: Device, software: Software, *, interpreter: str
) -> list[Measurement]:
    """Calibrate now (some seconds) and store the measurements, failures included."""
    measured = calibrate(device, software, interpreter=interpreter)
    store.add(measured)
    return measured

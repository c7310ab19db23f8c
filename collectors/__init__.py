"""How timings are taken: processes run in isolation, the probe, the clock and the calibration."""

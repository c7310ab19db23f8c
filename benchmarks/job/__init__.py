"""The parts of the main job's benchmark: sweeps, replay, live runs, overhead, scripts, faults."""

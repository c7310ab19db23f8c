"""The environment of a trial: what keeps it apart from other runs. A launch gets none of this."""

from __future__ import annotations

import socket
from collections.abc import Mapping
from pathlib import Path

TRACKERS_OFF = {
    "WANDB_MODE": "disabled",
    "COMET_MODE": "disabled",
    "NEPTUNE_MODE": "debug",
    "CLEARML_OFFLINE_MODE": "1",
    "SWANLAB_MODE": "disabled",
    "DISABLE_MLFLOW_INTEGRATION": "TRUE",
    "DVCLIVE_TEST": "true",
}
"""Each variable switches one experiment tracker off; one that is set already is left alone."""


def trial_environment(base: Mapping[str, str], *, name: str, folder: Path) -> dict[str, str]:
    """`base` with TUNE_TRIAL, TUNE_TRIAL_DIR, a free MASTER_PORT and the trackers switched off."""
    environment = {**TRACKERS_OFF, **base}
    environment["TUNE_TRIAL"] = name
    environment["TUNE_TRIAL_DIR"] = str(folder)
    port = str(_free_port())
    # torchrun reads its own --master-port from PET_MASTER_PORT.
    for variable in ("MASTER_PORT", "PET_MASTER_PORT"):
        environment.setdefault(variable, port)
    return environment


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])

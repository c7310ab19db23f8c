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

OURS = ("TUNE_DB",)
"""Variables of ours that no script needs; a database's address may hold a password."""


def trial_environment(base: Mapping[str, str], *, name: str, folder: Path) -> dict[str, str]:
    """`base` with TUNE_TRIAL, TUNE_TRIAL_DIR, a free MASTER_PORT and the trackers switched off.

    MLflow has no such switch: without an MLFLOW_TRACKING_URI it gets the trial's folder, so that
    `start_run` works and leaves nothing behind. One that is set stays, like the other trackers'
    variables: scripts load their models from there too.
    """
    environment = {
        **TRACKERS_OFF,
        "MLFLOW_TRACKING_URI": (folder.absolute() / "mlruns").as_uri(),
        **{variable: value for variable, value in base.items() if variable not in OURS},
    }
    environment["TUNE_TRIAL"] = name
    environment["TUNE_TRIAL_DIR"] = str(folder)
    # Also where the user has set one: trials must not meet each other or a run in progress there.
    # torchrun reads its own --master-port from PET_MASTER_PORT.
    environment["MASTER_PORT"] = environment["PET_MASTER_PORT"] = str(_free_port())
    return environment


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])

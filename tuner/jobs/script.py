"""The user's own training command as a tunable job: checked options, space, default, objective."""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from collectors.script import runtime_parameters
from collectors.script.command import TRIAL_DIR, ScriptCommand
from perfmodel.errors import SpaceError, UsageError
from perfmodel.records import Configuration, Value
from perfmodel.space import Space
from tuner.objective import Objective, objective_for
from tuner.space_syntax import parse_defaults, parse_space, with_default


@dataclass(frozen=True)
class ScriptJob:
    """A command with the space of its placeholders and runtime parameters.

    `assumed` names the parameters whose default value is neither given nor known from the
    environment; `default_given` says whether there was any `--default`.
    """

    command: ScriptCommand
    space: Space
    default: Configuration
    assumed: tuple[str, ...]
    default_given: bool
    objective: Objective


def script_job(
    command: Sequence[str],
    *,
    vary: Sequence[str],
    require: Sequence[str] = (),
    default: Sequence[str] = (),
    objective: str = "samples_per_second",
    samples: str = "",
    samples_global: bool = False,
) -> ScriptJob:
    """Check the options of `tune run` against each other; UsageError says which is wrong."""
    if not command:
        raise UsageError(
            "no command; give your own training command after --: ... -- python train.py"
        )
    script = ScriptCommand(tuple(command))
    if shutil.which(script.template[0]) is None:
        raise UsageError(
            f"command {script.template[0]!r} is not an executable file and not on PATH; give your "
            "own training command after --"
        )
    space = parse_space(vary, require)
    _check_names(script, space)
    given = parse_defaults(default)
    present = _present_values(script, space, os.environ)
    try:
        space, chosen = with_default(space, {**present, **given})
    except SpaceError:  # what the environment says today breaks a constraint with what is given
        present = {}
        space, chosen = with_default(space, given)
    _check_values(script, space)
    assumed = tuple(n for n in space.names if n not in given and n not in present)
    return ScriptJob(
        command=script,
        space=space,
        default=chosen,
        assumed=assumed,
        default_given=bool(given),
        objective=objective_for(
            space, name=objective, samples=samples, samples_global=samples_global
        ),
    )


def _check_names(script: ScriptCommand, space: Space) -> None:
    """Each placeholder has values; each parameter has a placeholder or is a runtime parameter."""
    script.check(space.names)
    for name in space.names:
        if name == TRIAL_DIR:
            raise UsageError(f"parameter {name!r} is reserved for each trial's own folder")
        if name not in script.placeholders and name not in runtime_parameters.PARAMETERS:
            raise UsageError(
                f"parameter {name!r} appears nowhere: write {{{name}}} into the command, or use "
                f"one that needs no placeholder: {', '.join(sorted(runtime_parameters.PARAMETERS))}"
            )


def _check_values(script: ScriptCommand, space: Space) -> None:
    for parameter in space.parameters:
        if parameter.name not in script.placeholders:
            runtime_parameters.check(parameter.name, parameter.values)


def _present_values(
    script: ScriptCommand, space: Space, environment: Mapping[str, str]
) -> dict[str, Value]:
    """What the runtime parameters are today, where that is known; it joins the space.

    Without this a user who never set OMP_NUM_THREADS would be compared with one thread, which
    nobody runs.
    """
    found: dict[str, Value] = {}
    if not script.is_python:
        return found  # a launcher such as torchrun sets its workers' threads itself
    for parameter in space.parameters:
        if parameter.name in script.placeholders:
            continue
        value = runtime_parameters.present(parameter.name, environment)
        if value is not None:
            found[parameter.name] = value
    return found

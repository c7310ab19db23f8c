"""The user's own command: its placeholders, its interpreter and the workload that it stands for."""

from __future__ import annotations

import hashlib
import os
import re
import shlex
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from perfmodel.errors import UsageError
from perfmodel.records import Facts, Value, Workload, value_text

TRIAL_DIR = "trial_dir"
_NAME = r"[A-Za-z_][A-Za-z0-9_]*"
# {{{name}}} is a value in braces, {{name}} is the text {name}, {name} is a value. All other braces
# (JSON, format strings) are the user's own.
_PLACEHOLDER = re.compile(rf"\{{\{{\{{({_NAME})\}}\}}\}}|\{{\{{({_NAME})\}}\}}|\{{({_NAME})\}}")
# python, python3.13t (free-threaded), python3.12d and python3-dbg (debugging), pypy3.
_PYTHON = re.compile(r"^(?:python|pypy)[0-9.]*(?:t?d?|-dbg)$")
# Programs that are Python scripts themselves and run a command under another Python.
_RUNNERS = ("conda", "mamba", "poetry", "pipenv", "pdm", "hatch", "uv", "uvx", "pixi", "tox", "nox")
_FLAGS_WITH_VALUE = ("-W", "-X", "--check-hash-based-pycs")


@dataclass(frozen=True)
class ScriptCommand:
    """A command with `{name}` placeholders; `{{name}}` stands for the text `{name}`."""

    template: tuple[str, ...]

    def __post_init__(self) -> None:
        if not self.template or not self.template[0]:
            raise UsageError("there is no command; give the training command after --")

    @cached_property
    def placeholders(self) -> frozenset[str]:
        """The names to be filled in, `trial_dir` left out."""
        found = (_PLACEHOLDER.finditer(part) for part in self.template)
        names = {match[1] or match[3] for matches in found for match in matches}
        return frozenset(name for name in names if name and name != TRIAL_DIR)

    @property
    def uses_trial_dir(self) -> bool:
        """Whether `{trial_dir}` is to be filled in."""
        return any(
            TRIAL_DIR in (match[1], match[3])
            for part in self.template
            for match in _PLACEHOLDER.finditer(part)
        )

    def check(self, names: Sequence[str]) -> None:
        """UsageError for a placeholder that is none of `names`."""
        for name in sorted(self.placeholders - set(names)):
            known = ", ".join([*sorted(names), TRIAL_DIR])
            raise UsageError(
                f"placeholder {{{name}}} in the command is no parameter; allowed: {known}. Give "
                f"--vary {name}=VALUES, or write {{{{{name}}}}} for the text {{{name}}}"
            )

    def fill(self, values: Mapping[str, Value], trial_dir: Path | None = None) -> tuple[str, ...]:
        """The command with every placeholder replaced; UsageError for one that has no value.

        An argument that becomes empty is left out, so that `{extra}` can be a flag or nothing.
        """
        known = {name: value_text(value) for name, value in values.items()}
        if trial_dir is not None:
            known[TRIAL_DIR] = str(trial_dir)

        def replace(match: re.Match[str]) -> str:
            if match[2]:
                return f"{{{match[2]}}}"
            name = match[1] or match[3]
            if name not in known:
                raise UsageError(
                    f"placeholder {{{name}}} has no value; allowed: {', '.join(sorted(known))}"
                )
            return f"{{{known[name]}}}" if match[1] else known[name]

        filled = ((part, _PLACEHOLDER.sub(replace, part)) for part in self.template)
        return tuple(text for part, text in filled if text or not part)

    @property
    def text(self) -> str:
        """The template as one line of shell."""
        return shlex.join(self.template)

    @property
    def is_python(self) -> bool:
        """Whether the program is a Python itself, not a launcher."""
        return bool(_PYTHON.match(Path(self.template[0]).name))

    @property
    def interpreter(self) -> str | None:
        """The Python that runs it: the program itself, or the one a launcher's first line names.

        None where only a run can tell (`uv run`, `conda run`, a shell script).
        """
        program = shutil.which(self.template[0])
        name = Path(self.template[0]).name
        if program is None or name in _RUNNERS:
            return None
        if name == "env":
            return _after_env(self.template[1:])
        if self.is_python:
            # Not resolved: a venv's link is its identity.
            return os.path.abspath(program)  # noqa: PTH100 (Path.absolute needs a live folder)
        try:
            with Path(program).open("rb") as stream:
                first = stream.readline(512).decode(errors="replace").strip()
        except OSError:
            return None
        words = first.removeprefix("#!").split() if first.startswith("#!") else []
        words = [w for w in words if w not in ("/usr/bin/env", "-S")]
        if words and _PYTHON.match(Path(words[0]).name):
            return shutil.which(words[0])
        return None

    @property
    def script(self) -> Path | None:
        """The file of the script or of the `-m` module, as far as it can be told."""
        words = list(self.template[1:])
        for index, word in enumerate(words):
            if word.endswith(".py") and _is_file(word):
                return Path(word)
            if word == "-m" and index + 1 < len(words):
                path = Path(*words[index + 1].split("."))
                for candidate in (path.with_suffix(".py"), path / "__main__.py"):
                    if _is_file(candidate):
                        return candidate
        return None

    @property
    def ignoring_flags(self) -> tuple[str, ...]:
        """Flags of the interpreter that keep the probe out: -I, -E, -S."""
        found = []
        words = iter(self.template[1:])
        for word in words:
            if word in _FLAGS_WITH_VALUE:
                next(words, None)
            elif word.startswith("-") and not word.startswith("--") and word not in ("-m", "-c"):
                found += [f"-{flag}" for flag in "IES" if flag in word[1:]]
            else:
                break
        return tuple(found) if self.is_python else ()


def _is_file(path: str | Path) -> bool:
    # Path.is_file raises for a folder that may not be searched.
    return os.path.isfile(path)  # noqa: PTH113


def _after_env(words: tuple[str, ...]) -> str | None:
    """The Python that `env` starts; None if its options or a PATH of its own may change that."""
    for index, word in enumerate(words):
        name, assigned, _ = word.partition("=")
        if not assigned and not word.startswith("-"):
            return ScriptCommand(words[index:]).interpreter
        if name == "PATH" or word.startswith("-"):
            return None
    return None


def _source(script: Path) -> str:
    try:
        return hashlib.sha256(script.read_bytes()).hexdigest()
    except OSError as error:
        raise UsageError(
            f"script {str(script)!r} can't be read: {error.strerror}; allowed: a file you may read"
        ) from error


def script_workload(command: ScriptCommand, *, step_optimizer: int | None = None) -> Workload:
    """The workload that `command` stands for: its template and the content of its script.

    The same command after an edit of the script is another workload, and so it is when a step
    means something else (`step_optimizer`).
    """
    script = command.script
    source = _source(script) if script else ""
    name = script.stem if script else Path(command.template[0]).name
    if script is not None and name == "__main__":
        name = script.parent.name
    facts: dict[str, Value] = {"command": command.text, "source": source}
    if step_optimizer is not None:
        facts["step_optimizer"] = step_optimizer
    return Workload("step", name, Facts(facts))

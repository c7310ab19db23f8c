"""README, docs and --help are kept true: what they say is run or compared."""

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from collectors.script.runtime_parameters import PARAMETERS
from perfmodel.expressions import ALLOWED
from tuner.jobs.script import script_job
from tuner.space_syntax import parse_parameter

ROOT = Path(__file__).parent.parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md")), ROOT / "examples/README.md"]


def test_command_line_page_is_current() -> None:
    done = subprocess.run([sys.executable, ROOT / "docs/write_cli.py", "--check"], check=False)
    assert done.returncode == 0, "run `make docs`"


@pytest.mark.parametrize("page", PAGES, ids=lambda p: str(p.relative_to(ROOT)))
def test_local_links_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)#]+)[^)]*\)", page.read_text()):
        if "://" not in target:
            assert (page.parent / target).exists(), f"{page.name}: {target}"


def commands_of(page: Path) -> list[list[str]]:
    """The `tune run` commands of a page, as a shell would split them."""
    text = page.read_text().replace("\\\n", " ")
    lines = re.findall(r"^\s*(?:\.venv/bin/)?tune (run .*? -- .*)$", text, re.MULTILINE)
    return [shlex.split(re.sub(r"\s+#.*", "", line)) for line in lines]


@pytest.mark.parametrize("page", PAGES, ids=lambda p: str(p.relative_to(ROOT)))
def test_commands_of_the_page_are_accepted(page: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every complete `tune run` line is checked by the code that checks a user's."""
    monkeypatch.chdir(ROOT)
    for words in commands_of(page):
        if "..." in words or any(w.endswith("...") for w in words):
            continue
        split = words.index("--")
        options, command = words[1:split], words[split + 1 :]
        values: dict[str, list[str]] = {}
        for name, value in zip(options, [*options[1:], ""], strict=True):
            if name.startswith("--"):
                values.setdefault(name, []).append(value)
        if command[0] == "python":
            command[0] = sys.executable
        job = script_job(
            command,
            vary=values["--vary"],
            require=values.get("--require", ()),
            default=values.get("--default", ()),
            samples=values.get("--samples", [""])[0],
        )
        assert len(job.space) > 1


def test_readme_has_the_two_commands_and_the_demo() -> None:
    text = (ROOT / "README.md").read_text()
    makefile = (ROOT / "Makefile").read_text()
    for target in ("demo", "test"):
        assert f"make {target}" in text
        assert re.search(rf"^{target}:", makefile, re.MULTILINE)
    assert len(commands_of(ROOT / "README.md")) == 1
    demo = re.sub(r"\s+", " ", makefile.replace("\\\n", " ").replace("$(BIN)/", ""))
    readme = " ".join(shlex.quote(w) for w in commands_of(ROOT / "README.md")[0])
    assert readme.replace("'", "") in demo.replace("tune run", "run")


def test_tables_of_the_run_page() -> None:
    text = (ROOT / "docs/tune-run.md").read_text()
    for written, values in re.findall(r"^\| `(\w+=\S+)` \| ([\d ]+) \|", text, re.MULTILINE):
        assert parse_parameter(written).values == tuple(int(v) for v in values.split())
    named = re.findall(r"^\| `(\w+)` \|", text, re.MULTILINE)
    assert sorted(named) == sorted(PARAMETERS)
    for function in ("min", "max", "abs", "ceil", "floor", "log2", "sqrt"):
        assert function in ALLOWED
        assert function in text


def test_every_path_that_the_architecture_names_exists() -> None:
    text = (ROOT / "docs/architecture.md").read_text()
    for cell in re.findall(r"^\| (`.*?) \|", text, re.MULTILINE):
        names = re.findall(r"`([^`]+)`", cell)
        package = names[0].split("/")[0]
        for name in names:
            folders = (ROOT, ROOT / package, (ROOT / names[0]).parent)
            assert any((folder / name).exists() for folder in folders), name


OPTIONS = {
    "run": "budget db deadline default help json launch launch-only memory-limit no-launch "
    "objective python require retune samples samples-global seed step-optimizer trial-time "
    "trials vary",
    "runs": "db help json limit",
    "doctor": "calibrate db help json python",
    "db info": "db help json",
}


@pytest.mark.parametrize("command", OPTIONS)
def test_options_are_frozen(command: str) -> None:
    """An option is a promise: adding or losing one is a decision, made here."""
    page = (ROOT / "docs/cli.md").read_text()
    section = page.split(f"## `tune {command}`")[1].split("\n## ")[0]
    found = set(re.findall(r"^  --([a-z-]+)| / --([a-z-]+)", section, re.MULTILINE))
    assert {a or b for a, b in found} == set(OPTIONS[command].split())


def test_help_is_written_everywhere() -> None:
    page = (ROOT / "docs/cli.md").read_text()
    for line in re.findall(r"^  --\S.*$", page, re.MULTILINE):
        assert re.search(r"\s{2,}\S", line.strip()) or len(line) > 24, line

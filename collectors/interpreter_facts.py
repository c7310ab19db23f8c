"""Run by the user's interpreter: prints the versions of its Python, torch and triton as JSON.

Only the standard library of Python 3.8 and later; torch is looked at, never imported.
"""

from __future__ import annotations

import sys

# First of all: no module beside this file may stand in for one of Python's or the user's.
sys.path[:] = [folder for folder in sys.path if folder not in ("", __file__.rpartition("/")[0])]

import ast  # noqa: E402
import importlib.metadata  # noqa: E402
import importlib.util  # noqa: E402
import json  # noqa: E402
import platform  # noqa: E402
from pathlib import Path  # noqa: E402


def version_of(*names: str) -> str | None:
    """Version of the first of these distributions that is installed."""
    for name in names:
        try:
            return importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return None


def torch_build() -> dict[str, str]:
    """The strings torch/version.py assigns: __version__, cuda, hip; empty without torch."""
    try:
        spec = importlib.util.find_spec("torch")
    except (ImportError, ValueError):
        return {}
    for folder in (spec.submodule_search_locations if spec else None) or ():
        try:
            return assigned_strings((Path(folder) / "version.py").read_text(encoding="utf-8"))
        except (OSError, SyntaxError, ValueError):
            continue
    return {}


def assigned_strings(source: str) -> dict[str, str]:
    """Names that `source` assigns a string literal to, with or without an annotation."""
    found = {}
    for node in ast.parse(source).body:
        if isinstance(node, ast.Assign):
            targets = node.targets
        elif isinstance(node, ast.AnnAssign):
            targets = [node.target]
        else:
            continue
        if isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            found.update({t.id: node.value.value for t in targets if isinstance(t, ast.Name)})
    return found


def main() -> None:
    """Print the facts that are known."""
    build = torch_build()
    facts = {
        "python": platform.python_version(),
        "torch": build.get("__version__") or version_of("torch"),
        "cuda": build.get("cuda"),
        "hip": build.get("hip"),
        "triton": version_of("triton", "pytorch-triton", "pytorch-triton-rocm"),
    }
    sys.stdout.write(json.dumps({key: value for key, value in facts.items() if value}) + "\n")


if __name__ == "__main__":
    main()

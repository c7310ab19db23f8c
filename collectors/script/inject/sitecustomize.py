"""First on PYTHONPATH in a measured process: starts the probe, then leaves no trace of itself.

Python imports `sitecustomize` before anything of the user's. This one starts the probe, takes its
own folder off sys.path and steps aside for the sitecustomize that would have been found without it
(or for none). PYTHONPATH stays in the environment, so that child processes are measured too. The
syntax is Python 2's as well: a measured script may start any interpreter.
"""

import os
import sys


def _start():
    # type: () -> None
    folder = os.path.dirname(os.path.abspath(__file__))
    try:
        import _perfmodel_probe  # type: ignore[import-not-found]

        _perfmodel_probe.start(os.environ)
    except Exception:
        pass
    sys.path[:] = [entry for entry in sys.path if os.path.abspath(entry) != folder]
    sys.path_importer_cache.pop(folder, None)


_start()
# The import below finds the next sitecustomize and puts it in our place; where there is none, its
# ImportError is what the interpreter expects to see.
sys.modules.pop("sitecustomize", None)
import sitecustomize  # type: ignore[import-not-found]  # noqa: E402, F401

"""The control groups that may limit this process, of both versions and inside containers.

Standard library only, and little of it: the warden runs this under `python -I -S`.
"""

from __future__ import annotations

from collections.abc import Iterator

from collectors.processes import read_text


def group_folders(controller: str, root: str = "/") -> Iterator[tuple[int, str]]:
    """Version and folder of the process's groups that may limit `controller`, inmost first.

    A group may lack the controller that an outer one has. In a container the path in
    /proc/self/cgroup may be the host's, while the mount is the container's own group: folders are
    given without a look whether they exist, the mount itself last.
    """
    root = root.rstrip("/")
    for line in read_text(f"{root}/proc/self/cgroup").splitlines():
        hierarchy, controllers, path = line.split(":", 2)
        if hierarchy == "0" and not controllers:
            version, mounts = 2, ("", "/unified")
        elif controller in controllers.split(","):
            version, mounts = 1, (f"/{controllers}", f"/{controller}")
        else:
            continue
        parts = [part for part in path.split("/") if part not in ("", "..")]
        for mount in mounts:
            for length in range(len(parts), -1, -1):
                yield version, "/".join([f"{root}/sys/fs/cgroup{mount}", *parts[:length]])


def oom_kills() -> tuple[int | None, int | None]:
    """Kills by the kernel's OOM killer so far: of this control group, of the machine."""
    files = {1: "memory.oom_control", 2: "memory.events"}
    texts = (read_text(f"{folder}/{files[version]}") for version, folder in group_folders("memory"))
    own = next((count for text in texts if (count := _counter(text)) is not None), None)
    return own, _counter(read_text("/proc/vmstat"))


def _counter(text: str) -> int | None:
    for line in text.splitlines():
        if line.startswith("oom_kill "):
            return int(line.split()[1])
    return None

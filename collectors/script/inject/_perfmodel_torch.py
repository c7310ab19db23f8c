"""Arms the probe when the user's script imports torch, and sees the optimizers' calls from then."""

from __future__ import annotations

import functools
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

_probe: Any = None
_is_compiling: Any = None
_breaking: tuple[type, ...] = ()

_NESTING_FRAMES = 12
_FIRST_WITH_HOOKS = (2, 3)
"""Before it, torch.compile took the global hooks off torch's own optimizers."""


def watch_imports(probe: Any) -> None:
    """Have `probe` armed once torch is imported."""
    global _probe
    _probe = probe
    watched = {"torch": _arm, "torch._dynamo": _arm_dynamo}
    for name in list(watched):
        if name in sys.modules:  # by a .pth file
            _call_back(watched.pop(name), sys.modules[name])
    if watched:
        sys.meta_path.insert(0, _Finder(watched))


def _call_back(callback: Callable[[Any], None], module: Any) -> None:
    try:
        callback(module)
    except Exception as error:
        _probe.fail(error)


class _Finder:
    """Calls back once each watched module was executed; its loader is left as it was."""

    def __init__(self, watched: dict[str, Callable[[Any], None]]) -> None:
        self.watched = watched

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        """What the other finders find; None for anything that isn't watched."""
        if name not in self.watched:
            return None
        for finder in list(sys.meta_path):
            find_spec = getattr(finder, "find_spec", None)
            if finder is self or find_spec is None:
                continue
            spec = find_spec(name, path, target)
            if spec is not None:
                self._watch(name, spec.loader)
                return spec
        return None

    def _watch(self, name: str, loader: Any) -> None:
        original: Any = getattr(loader, "exec_module", None)

        def exec_module(module: Any) -> None:
            del loader.exec_module
            original(module)
            callback = self.watched.pop(name, None)
            if not self.watched and self in sys.meta_path:
                sys.meta_path.remove(self)
            if callback is not None:
                _call_back(callback, module)

        try:
            if original is not None and "exec_module" not in vars(loader):
                loader.exec_module = exec_module
        except (AttributeError, TypeError):  # a loader that takes no attribute is left alone
            self.watched.pop(name, None)


def _arm(torch: Any) -> None:
    """`import torch` has ended."""
    global _is_compiling
    _probe.torch = torch
    _probe.apply_settings()
    if _probe.connection.closed:
        return
    optimizer = sys.modules["torch.optim.optimizer"]
    _is_compiling = getattr(getattr(torch, "compiler", None), "is_compiling", None)
    register = getattr(optimizer, "register_optimizer_step_post_hook", None)
    version = tuple(int(part) for part in torch.__version__.split(".")[:2])
    if register is not None and version >= _FIRST_WITH_HOOKS:
        register(_after_step)
        _probe.armed("hook")
    else:
        _patch(optimizer.Optimizer)
        _probe.armed("patch")


def _arm_dynamo(dynamo: Any) -> None:
    """`import torch._dynamo` has ended, so steps may be compiled from now on."""
    global _compiled_call, _breaking
    _compiled_call = dynamo.disable(_compiled_call)
    kinds = [kind for kind in vars(_probe.torch.optim).values() if isinstance(kind, type)]
    names = {kind: _innermost(getattr(kind, "step", None)) for kind in kinds}
    _breaking = tuple(kind for kind, name in names.items() if name == "_use_grad")


def _innermost(step: Any) -> str:
    # _hooked_ wraps _use_grad, which wraps the function of the class itself.
    while getattr(step, "__wrapped__", None) is not None:
        if step.__code__.co_name == "_use_grad":
            return "_use_grad"
        step = step.__wrapped__
    return ""


def _after_step(optimizer: Any, args: Any, kwargs: Any) -> None:
    # Where a step is compiled, torch.compile traces this function. A call that can't be compiled
    # breaks the graph: harmless for the optimizers whose step breaks it anyway (a script compiled
    # with fullgraph=True can't use those), so only their compiled steps are seen.
    if _is_compiling is not None and _is_compiling():
        if isinstance(optimizer, _breaking):
            _compiled_call(optimizer)
        return
    if not _probe.connection.closed and not _is_nested(optimizer):
        _probe.call(optimizer)


def _compiled_call(optimizer: Any) -> None:
    _probe.call(optimizer)


def _is_nested(optimizer: Any) -> bool:
    # A subclass's step that calls its parent's step is one call, seen twice.
    caller = sys._getframe(2)
    code, frame = caller.f_code, caller.f_back
    for _ in range(_NESTING_FRAMES):
        if frame is None:
            return False
        if frame.f_code is code and _first_argument(frame) is optimizer:
            return True
        frame = frame.f_back
    return False


def _first_argument(frame: Any) -> Any:
    values = frame.f_locals
    return values["self"] if "self" in values else (values.get("args") or (None,))[0]


def _patch(base: Any) -> None:
    """For a torch without usable global hooks: wrap a class's step when one of it is made."""
    original = base.__init__

    @functools.wraps(original)
    def __init__(self: Any, *args: Any, **kwargs: Any) -> None:
        original(self, *args, **kwargs)
        _wrap_step(type(self))

    base.__init__ = __init__


def _wrap_step(kind: Any) -> None:
    inner = kind.step
    if getattr(inner, "_perfmodel", False):
        return

    @functools.wraps(inner)
    def step(self: Any, *args: Any, **kwargs: Any) -> Any:
        result = inner(self, *args, **kwargs)
        _after_step(self, args, kwargs)
        return result

    step.__dict__.pop("hooked", None)  # with it, torch.compile would take this wrapper off
    step.__dict__["_perfmodel"] = True
    kind.step = step

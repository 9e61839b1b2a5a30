"""Sees what every process that imports torch trains on, and when it steps; shares no code with dpdoctor.

With this folder on PYTHONPATH, each call of a torch optimizer's step leaves a line in the file `steps-PID.jsonl` of the
folder that ORACLE_VARIABLE names: `at_ns` of time.monotonic_ns, the `optimizer`, and `digests` of the tensors of each
outermost call of a module with gradients enabled since the line before; torch shows it positional arguments alone.
"""

from __future__ import annotations

import hashlib
import importlib.abc
import importlib.machinery
import json
import os
import sys
import threading
import time
from pathlib import Path

ORACLE_VARIABLE = "DPDOCTOR_TEST_ORACLE"
STEPS = "steps-{}.jsonl"


class Calls(threading.local):
    """The calls of modules in one thread: whether each that is open, or one around it, was looked at."""

    def __init__(self):
        self.open = [False]
        self.digests = []


CALLS = Calls()


def stepped(optimizer, *_):
    """Leave the line; a hook of torch's optimizers."""
    line = {"at_ns": time.monotonic_ns(), "optimizer": id(optimizer), "digests": CALLS.digests[:]}
    CALLS.digests.clear()
    if folder := os.environ.get(ORACLE_VARIABLE):
        with Path(folder, STEPS.format(os.getpid())).open("a") as file:
            file.write(json.dumps(line) + "\n")


def called(module, args):
    """Look at what a module is called with; a hook of torch's modules."""
    import torch
    from torch._C._functorch import is_functorch_wrapped_tensor as is_wrapped  # as in vmap: it has no memory

    CALLS.open.append(CALLS.open[-1])
    if not CALLS.open[-1] and torch.is_grad_enabled() and ORACLE_VARIABLE in os.environ:
        strided = [tensor for tensor in tensors(args) if tensor.layout == torch.strided and not is_wrapped(tensor)]
        flat = [tensor.detach().cpu().contiguous().view(-1) for tensor in strided]
        found = [tensor.view(torch.uint8).numpy().tobytes() for tensor in flat]  # numpy knows no bfloat16
        if found and any(parameter.requires_grad for parameter in module.parameters()):
            CALLS.open[-1] = True
            CALLS.digests.append(hashlib.sha1(b"".join(found), usedforsecurity=False).hexdigest())


def returned(*_):
    """A module's call has ended."""
    CALLS.open.pop()


def tensors(value):
    """Yield the tensors in nested containers."""
    import torch

    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, (dict, list, tuple)):
        for item in value.values() if isinstance(value, dict) else value:
            yield from tensors(item)


def watch_modules(module):
    """Hook in once torch's modules are imported."""
    module.register_module_forward_pre_hook(called)
    module.register_module_forward_hook(returned, always_call=True)


HOOKS = {
    "torch.optim.optimizer": lambda module: module.register_optimizer_step_post_hook(stepped),
    "torch.nn.modules.module": watch_modules,
}


class Finder(importlib.abc.MetaPathFinder):
    """Runs a hook when a module of HOOKS has been imported."""

    def find_spec(self, name, path, target=None):  # noqa: ARG002 - the signature that Python calls
        if name not in HOOKS:
            return None
        hook = HOOKS.pop(name)
        spec = importlib.machinery.PathFinder.find_spec(name, path)
        execute = spec.loader.exec_module

        def execute_and_hook(module):
            execute(module)
            hook(module)

        spec.loader.exec_module = execute_and_hook
        return spec


sys.meta_path.insert(0, Finder())

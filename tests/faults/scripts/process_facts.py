"""Trains, and prints what its process is: everything that a fork could have made different, as one line of JSON."""

import gc
import json
import locale
import multiprocessing
import os
import random
import resource
import signal
import sys
import tempfile
import threading

BEFORE = set(sys.modules)

import numpy as np
import torch
from torch import nn


def opened():
    """Where the descriptors lead, but for the one that reads them; sockets, pipes and terminals without numbers."""
    links = (os.path.join("/proc/self/fd", name) for name in os.listdir("/proc/self/fd"))
    found = [os.readlink(link).split(":")[0] for link in links if os.path.lexists(link)]
    return sorted("pts" if path.startswith("/dev/pts/") else os.path.basename(path) for path in found)


def status(*names):
    with open("/proc/self/status") as file:
        return {line.split(":")[0]: line.split()[1] for line in file if line.split(":")[0] in names}


def stream(file):
    return [file.encoding, file.errors, file.line_buffering, file.write_through, file.isatty(), file.fileno()]


facts = {
    "environment": dict(os.environ),
    "argv": sys.argv,
    "orig_argv": sys.orig_argv,
    "path": sys.path,
    "flags": list(sys.flags),
    "xoptions": sys._xoptions,
    "warnoptions": sys.warnoptions,
    "main": [__name__, __file__, vars(sys.modules["__main__"]).get("__spec__")],
    "cwd": os.getcwd(),
    "umask": os.umask(0o22),
    "leads its session": os.getsid(0) == os.getpid() == os.getpgrp(),
    "limits": {
        name: resource.getrlimit(getattr(resource, name)) for name in dir(resource) if name.startswith("RLIMIT")
    },
    "nice": os.nice(0),
    "cores": sorted(os.sched_getaffinity(0)),
    "signals": {str(n): str(signal.getsignal(n)).split(" at ")[0] for n in signal.valid_signals()},
    "blocked": sorted(signal.pthread_sigmask(signal.SIG_BLOCK, [])),
    "wakeup": signal.set_wakeup_fd(-1),
    "descriptors": opened(),
    "streams": [stream(file) for file in (sys.stdin, sys.stdout, sys.stderr)],
    "threads": [thread.name for thread in threading.enumerate()],
    "is main thread": threading.current_thread() is threading.main_thread(),
    "locale": locale.getlocale(),
    "temporary": tempfile.gettempdir(),
    "gc": [gc.isenabled(), gc.get_threshold(), gc.get_freeze_count(), gc.get_debug()],
    "start method": multiprocessing.get_start_method(allow_none=True),
    "recursion": sys.getrecursionlimit(),
    "switch interval": sys.getswitchinterval(),
    "torch threads": [torch.get_num_threads(), torch.get_num_interop_threads()],
    "parallel": torch.__config__.parallel_info(),
    "random": [random.random(), np.random.rand(), torch.rand(1).item(), torch.initial_seed()],
    "deterministic": [
        torch.are_deterministic_algorithms_enabled(),
        torch.backends.mkldnn.enabled,
        torch.get_default_dtype(),
    ],
    "cuda": [torch.cuda.is_available(), torch.cuda.is_initialized()],
    "hash": hash("a text"),
    "parent": os.getppid(),
    "modules": sorted(BEFORE),
}

model = nn.Linear(64, 64)
optimizer = torch.optim.AdamW(model.parameters())
facts["modules of training"] = sorted(sys.modules)
facts["product of torch"] = torch.mm(torch.full((64, 64), 0.1), torch.full((64, 64), 0.3)).sum().item()
# The threads of numpy's BLAS do not survive a fork; they start anew with its first product.
facts["product of numpy"] = (np.full((512, 512), 0.1) @ np.full((512, 512), 0.3)).sum()
facts["of the kernel"] = status("SigBlk", "SigIgn", "SigCgt", "Threads", "NoNewPrivs", "Seccomp")
print(json.dumps(facts, default=str), flush=True)
while True:
    loss = model(torch.rand(8, 64)).square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    print(loss.item(), flush=True)

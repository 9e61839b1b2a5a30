"""A tracker that works as wandb does: threads, a forked process and a program of its own write its folder of runs."""

import multiprocessing
import os
import subprocess
import sys
import threading

WRITES = "import sys; open(sys.argv[1], 'w').write(sys.argv[2])"


def init(project=None, dir=None, config=None, mode=None):
    run = os.path.join(os.path.abspath(dir or os.environ.get("WANDB_DIR") or os.getcwd()), "wandb", f"run-{project}")
    os.makedirs(run)
    subprocess.run([sys.executable, "-c", WRITES, os.path.join(run, "program"), "x"], check=True)
    for name, kind in (("thread", threading.Thread), ("process", multiprocessing.get_context("fork").Process)):
        writer = kind(target=write, args=(os.path.join(run, name),))
        writer.start()
        writer.join()
    print("mode", mode or os.environ.get("WANDB_MODE", "online"), sorted(os.listdir(run)), flush=True)


def write(path):
    with open(path, "w") as file:
        file.write("x")


def watch(model):
    for parameter in model.parameters():
        parameter.register_hook(lambda gradient: None)

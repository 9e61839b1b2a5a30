"""Starts the ranks of another script as torchrun would, but forks them: torch is imported once for all of them."""

import gc
import os
import runpy
import socket
import sys

gc.disable()
import torch._dynamo  # which every optimizer imports
import torch.distributed.fsdp

gc.freeze()  # what was imported is neither looked through nor taken apart by the ranks
gc.enable()
num_ranks, script = int(sys.argv[1]), sys.argv[2]
with socket.create_server(("localhost", 0)) as free:
    port = free.getsockname()[1]
ranks = []
for rank in range(num_ranks):
    if not (pid := os.fork()):
        sys.argv[:] = sys.argv[2:]
        place = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": num_ranks, "MASTER_PORT": port}
        os.environ |= {"MASTER_ADDR": "localhost"} | {name: str(value) for name, value in place.items()}
        runpy.run_path(script, run_name="__main__")
        sys.exit()
    ranks.append(pid)
# At once, as a launcher that is no Python ends: to take torch apart takes a second.
os._exit(max(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in ranks))

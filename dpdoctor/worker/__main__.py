"""`python -m dpdoctor.worker`: what the launcher, or torchrun, starts once per rank."""

import sys

import dpdoctor.worker.leaving  # noqa: F401 - before torch

if __name__ == "__main__":
    from dpdoctor.worker.rank import main

    sys.exit(main())

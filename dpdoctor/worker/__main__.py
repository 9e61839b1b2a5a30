"""`python -m dpdoctor.worker`: what the launcher, or torchrun, starts once per rank."""

import sys

from dpdoctor.worker.rank import main

if __name__ == "__main__":
    sys.exit(main())

"""`python -m dpdoctor.worker`: what the launcher, or torchrun, starts once per rank."""

import sys

from dpdoctor.worker.leaving import Leaving

if __name__ == "__main__":
    leaving = Leaving()
    from dpdoctor.worker.rank import main

    sys.exit(main(leaving))

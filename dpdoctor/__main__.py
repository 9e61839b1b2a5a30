"""`python -m dpdoctor` is the `dpdoctor` command."""

import atexit
import gc

# A command loads much and keeps it: to look through all of it for garbage, again and again and once more at the end,
# takes a tenth of the time of a short one.
ALLOCATIONS = 500_000


def run() -> None:
    """Run the command, with garbage looked for rarely."""
    gc.set_threshold(ALLOCATIONS)
    atexit.register(gc.freeze)
    from dpdoctor.cli import main  # here: what it loads is most of what is kept

    main(prog_name="dpdoctor")


if __name__ == "__main__":
    run()

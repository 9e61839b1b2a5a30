"""`python -m dpdoctor` is the `dpdoctor` command."""

from dpdoctor.cli import main

if __name__ == "__main__":
    main(prog_name="dpdoctor")

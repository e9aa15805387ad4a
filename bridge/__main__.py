"""`python -m bridge` is `scanbridge`."""

from bridge.cli import main

if __name__ == "__main__":
    main(prog_name="scanbridge")

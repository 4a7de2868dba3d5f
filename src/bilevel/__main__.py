"""`python -m bilevel` is the command `bilevel`."""

from bilevel.cli import main

if __name__ == "__main__":
    main()

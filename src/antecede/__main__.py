"""python -m antecede: the command line, where the command itself is not on the path."""

from antecede.cli import main

if __name__ == "__main__":
    main()

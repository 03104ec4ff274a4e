"""`python -m underpaint` is the command `underpaint`."""

from underpaint.cli.app import main

if __name__ == "__main__":
    main()

"""`python -m tocsin.cli` is the command `tocsin`."""

from tocsin.cli.app import main

if __name__ == "__main__":
    main()

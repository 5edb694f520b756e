"""`python -m trimtab` is the command line."""

from trimtab.cli import main

main()

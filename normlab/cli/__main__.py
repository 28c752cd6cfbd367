"""`python -m normlab.cli`."""

from normlab.cli import main

main()

"""`python -m tuner`: the same program as the scripts `tune` and `perfmodel`."""

from tuner.cli.main import main

main()

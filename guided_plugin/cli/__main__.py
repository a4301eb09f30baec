"""`python -m guided_plugin.cli`: the command line where the console script is not
installed."""

from guided_plugin.cli import main

main()

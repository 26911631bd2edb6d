"""`python -m node.cli`: the program without its installed script."""

from node.cli.main import main

main()

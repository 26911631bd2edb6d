"""The command line: verbs that speak HTTP to a running node, and a few that work without one."""

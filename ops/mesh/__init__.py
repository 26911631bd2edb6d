"""A mesh of real node processes on one machine: what it does, measured from outside."""

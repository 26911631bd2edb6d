"""What the node tells its operator: `logs` and `metrics`, never content."""

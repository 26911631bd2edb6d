"""What peers say to one another: wire, walk, deliveries, tombstones that follow, repair."""

"""Programs that show how an agent uses a node; the tests run each of them."""

"""The HTTP edge: routes, who may call them, and the server that runs them in the island."""

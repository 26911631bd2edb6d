"""The process: composition root, configuration, HTTP, command line, use cases and workers."""

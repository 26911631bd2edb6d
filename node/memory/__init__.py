"""What agents do with memories: remember, recall, list, delete, forget, recover."""

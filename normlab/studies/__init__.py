"""Answer questions with the library: how exact the paths are, and what a model keeps in memory."""

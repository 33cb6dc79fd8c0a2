"""Worker processes: everything that may hang runs in one of them, asked with a deadline."""

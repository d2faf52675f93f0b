"""Mail people about jobs in trouble, and record what happened to jobs."""

"""Start, find and stop the processes of jobs."""

"""The pages, a file for each subject: its routes, and what its template shows."""

"""The pages that Tocsin adds to Airflow: how all jobs fare, and the story of one. They show; its API acts."""

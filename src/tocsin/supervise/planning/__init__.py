"""What a job was started with, and what a deploy of other files would do to it."""

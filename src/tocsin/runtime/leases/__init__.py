"""Who leads a job: locks of files on one machine, leases in PostgreSQL where several run one installation."""

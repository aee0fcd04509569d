"""Storage driver for OpenStack Zaqar: the PostgreSQL extension queue."""

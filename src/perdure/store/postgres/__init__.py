"""The PostgreSQL store: one database, any number of processes on any number of hosts.  Needs ``perdure[postgres]``."""

from perdure.store.postgres.store import LeaseRules, PostgresStore

__all__ = ["LeaseRules", "PostgresStore"]

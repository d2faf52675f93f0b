"""Run alembic's migrations over the connection, and inside the transaction, of the caller."""

from alembic import context

from tocsin.alerts.store.schema import metadata

context.configure(connection=context.config.attributes["connection"], target_metadata=metadata, transactional_ddl=True)
with context.begin_transaction():
    context.run_migrations()

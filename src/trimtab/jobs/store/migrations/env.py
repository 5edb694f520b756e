"""Alembic's entry: runs the migrations on the connection that `store.job_store` hands over."""

from alembic import context

from trimtab.jobs.store.schema import metadata

context.configure(connection=context.config.attributes["connection"], target_metadata=metadata)
with context.begin_transaction():
    context.run_migrations()

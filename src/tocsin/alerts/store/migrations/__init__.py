"""Schema versions of the alerts DB, applied by `tocsin.alerts.store.database.Database.migrate`."""

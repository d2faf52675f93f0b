"""Schema versions of the alerts DB, applied by `tocsin.alerts.database.Database.migrate`."""

"""The alerts DB: its tables, and all that reads them."""

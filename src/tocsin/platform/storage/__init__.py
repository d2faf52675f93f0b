"""Where state lies that must outlive a machine: in a folder, or in an object store."""

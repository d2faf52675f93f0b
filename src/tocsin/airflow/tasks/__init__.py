"""Do the work of the DAGs: each module has the tasks of one purpose."""

"""Set-up: brings Python packages, Java archives and a Java into the checkout, each locked by its hash.

It runs before anything is installed (`PYTHONPATH=src python3 -m tocsin.setup`), so this room uses the standard library
alone. The stack and the jobs ask it where things are: `paths.here()`, `java.find_java()`.
"""

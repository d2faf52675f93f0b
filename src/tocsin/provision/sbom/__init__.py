"""The list of all that an installation is made of (SBOM), written from the locks."""

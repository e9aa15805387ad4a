"""`scanbridge quarantine`: find, release and delete mail that was kept."""

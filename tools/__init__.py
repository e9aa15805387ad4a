"""Programs that generate documents: `make docs`, `make site`, `make dashboard-picture`."""

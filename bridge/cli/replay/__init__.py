"""`scanbridge replay`: stored mail against another scanner."""

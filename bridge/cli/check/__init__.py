"""What `scanbridge check` looks at, one file for each idea."""

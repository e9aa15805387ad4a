"""The wire contract between bridge and service, as data. Imports nothing of ours."""

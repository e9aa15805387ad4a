"""The HTTP contract between bridge and service, as data. Knows no HTTP library, no mail and no storage."""

"""The configuration file as types. Known to the daemon and the command line only; every other part gets settings."""

"""The tests, as a package: kits are imported by their full name (`tests.relay.scripted_hop`)."""

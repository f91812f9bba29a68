"""What asks the servers among the bundled runs."""

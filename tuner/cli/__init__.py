"""The command line: one file per command, each parses and calls the library."""

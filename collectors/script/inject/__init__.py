"""What is put in front of PYTHONPATH: no package to import, its files are found by name."""

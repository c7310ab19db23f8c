"""Where timings are kept: schema, migrations and the store."""

"""Do the certificates hold? A world with a known true risk, honest chains and broken ones."""

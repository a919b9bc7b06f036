"""Results: what a record is, how records are stored, how they are collected."""

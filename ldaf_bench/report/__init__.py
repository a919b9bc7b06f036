"""The report: figures, tables and one page, from Parquet alone. Nothing here computes a result."""

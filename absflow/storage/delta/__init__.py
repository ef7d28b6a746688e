"""Delta: its log, its transactions, its tables, and the files that workers write for them."""

"""The DataFrames of a query, from its sources to the pages of its last stage; nothing runs here."""

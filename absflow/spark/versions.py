"""The versions of Spark and Delta whose internals are used."""

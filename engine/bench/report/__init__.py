"""The HTML page of one or two files of results."""

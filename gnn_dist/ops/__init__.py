"""Local operators on sparse structures and rows. Nothing here communicates."""

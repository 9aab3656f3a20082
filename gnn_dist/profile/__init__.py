"""Where time and bytes go."""

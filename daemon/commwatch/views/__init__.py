"""Output for people in a terminal or a picture: top, heat maps, tables."""

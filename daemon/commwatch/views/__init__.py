"""What people see in a terminal or a picture: top, heat maps, tables."""

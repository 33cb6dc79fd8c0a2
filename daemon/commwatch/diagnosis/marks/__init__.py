"""Figures that users hold a node against: what each is about, where it applies, and what a model needs; pure."""

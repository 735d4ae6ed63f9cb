"""Plots of results as SVG files, by matplotlib, which is optional: one file a plot."""

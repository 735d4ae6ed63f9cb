"""Exactness: whether answers stay equal, bit for bit, however they are computed."""

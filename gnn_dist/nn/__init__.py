"""Layers and models over `(x, block)`, and the adapter for models written for one machine."""

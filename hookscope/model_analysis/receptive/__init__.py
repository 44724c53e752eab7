"""Receptive fields: on which positions of the input each unit of a layer depends."""

"""Tunes the GPU kernel without a GPU: compiles candidates, reads what they need, orders those that fit."""

"""Frames and typed messages between peers."""

"""Explain: a kernel's plan, the x-ray of ladders, and the tutorials with what their notebooks call."""

"""What explains: the x-ray of ladders, tutorials and what their notebooks call."""

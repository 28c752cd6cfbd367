"""Imitate the GPU: threads, warps, blocks and clusters, their memory, and the launch that runs them."""

"""The SGEMM ladder: C = alpha A B + beta C, row-major float32.

2 M N K operations on 4 (M K + K N + 2 M N) bytes: at 4096 x 4096 x 4096 more than 500 operations a byte, where an H200
pays for 14. A product is bound by arithmetic, and each step takes away something that keeps the multipliers waiting.
"""

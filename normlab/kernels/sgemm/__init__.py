"""The SGEMM ladder: C = alpha A B + beta C, row-major float32.

2 M N K operations on at least 4 (M K + K N + M N) bytes: for 4096 x 4096 x 4096 that is 683 operations a byte, where an
H200 pays for 14 (`normlab.kernels.roofline`). A product is bound by arithmetic, and each step takes away something that
keeps the multipliers waiting.

What the steps' files count in: a multiprocessor begins four instructions of a warp a clock, all of which may be
fused multiply-adds (FMA), and gets from shared memory or L1 one wavefront a clock, up to 128 bytes for a warp.
"Bound by" is what that arithmetic says of an H200, from wavefronts as `trace` counts them and instructions of the main
loop as nvdisasm shows them for compute capability 9.0. "Measured" is from ladder_sgemm_*.json: what it falls short of
that is waiting, which the arithmetic leaves out.
"""

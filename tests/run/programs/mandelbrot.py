"""The Mandelbrot set: complex numbers, a 2-D grid with strides, and an image written by columns of a device array."""

import numpy as np
from numba import cuda


@cuda.jit(device=True)
def escape(c, most):
    z = 0j
    for i in range(most):
        z = z * z + c
        if z.real * z.real + z.imag * z.imag >= 4:
            return i
    return most


@cuda.jit
def draw(image, low, high, most):
    width, height = image.shape[1], image.shape[0]
    first_x, first_y = cuda.grid(2)
    step_x, step_y = cuda.gridsize(2)
    for x in range(first_x, width, step_x):
        for y in range(first_y, height, step_y):
            real = low.real + x * (high.real - low.real) / width
            imag = low.imag + y * (high.imag - low.imag) / height
            image[y, x] = escape(complex(real, imag), most)


image = cuda.device_array((12, 18), dtype=np.uint8)
draw[(2, 2), (4, 4)](image[:, :9], -2 - 1j, -0.5 + 1j, 20)
draw[(2, 2), (4, 4)](image[:, 9:], -0.5 - 1j, 1 + 1j, 20)
print("result:", image.copy_to_host().sum(), image[6, 9], image.T.shape[0])

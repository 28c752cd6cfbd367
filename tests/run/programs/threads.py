"""Launches from many threads: on one device, one after another; the last thread outlives the script."""

import threading
import time

import numpy as np
from numba import cuda

total = cuda.to_device(np.zeros(1, np.int64))


@cuda.jit
def add(total, value):
    cuda.atomic.add(total, 0, value)


def work(value):
    add[2, 32](total, value)


workers = [threading.Thread(target=work, args=(value,)) for value in range(6)]
for worker in workers:
    worker.start()
for worker in workers:
    worker.join()


def late():
    time.sleep(0.1)
    work(100)
    print("result:", total[0])


threading.Thread(target=late).start()

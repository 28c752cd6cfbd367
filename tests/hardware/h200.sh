#!/usr/bin/env bash
# What is measured on an H200, a part at a time: tests/hardware/h200.sh PART [OUT]; results go to OUT (default: $OUT, else .).
# Wheels that the machine lacks lie in .whl. Parts take 2 to 8 minutes; each prints a short table last.
set -uo pipefail
cd "$(dirname "$0")/../.."
out=${2:-${OUT:-.}}
if compgen -G ".whl/*.whl" >/dev/null && [ ! -e /tmp/installed ]; then  # not on a path: tests of the course set their own
  python3 -m pip install -q --no-index --no-deps --no-compile --no-cache-dir --break-system-packages .whl/*.whl
  touch /tmp/installed
fi
export PYTHONPATH=$PWD:$PWD/tests NORMLAB_CACHE_DIR=/tmp/normlab-cache TORCHINDUCTOR_CACHE_DIR=/tmp/inductor PYTHONUNBUFFERED=1
bench="python3 -m normlab.cli bench"
record() { local name=$1; shift; $bench "$@" --json "$out/$name.json"; }

case $1 in
  suite)  # 390 s with 16 processors; on a machine of two GPUs the tests for two run, too
    python3 -m hardware.suite "$out/suite_h200.json" -n "$(nproc)" -o faulthandler_timeout=150 2>&1 | tee "$out/suite.txt" | tail -60 ;;
  warm) python3 -m hardware.warm; python3 -m hardware.warm --n1 1,16,132 --n2 65536,262144 bfloat16 float32
    python3 -m hardware.warm --n2 64,128,256,384 bfloat16 float32 ;;  # the parts after this take half of their time
  norm-*) dtype=${1#norm-}; record "norm_${dtype}_h200" norm --dtype "$dtype" --both-paths --peers torch,compile,liger ;;
  ladders)
    for ladder in forward backward; do record "ladder_${ladder}_h200" ladder $ladder; done
    record host_h200 host --direction both --peers torch,compile ;;
  odd)  # few long rows, many short ones
    record norm_long_h200 norm --dtype bfloat16,float32 --n1 1,16,132 --n2 65536,262144 --peers torch,compile,liger
    record norm_short_h200 norm --dtype bfloat16,float32 --n2 64,128,256,384 --peers torch,compile,liger ;;
  sweep)
    for saved in input output; do
      for n2 in 4096 8192 16384 65536; do
        python3 -m hardware.sweep backward --n2 $n2 --saved $saved | tee -a "$out/sweep.txt" | head -8
      done
    done
    for n2 in 768 1024 8192 65536; do
      for norm in layer rms; do
        python3 -m hardware.sweep forward --n2 $n2 --norm $norm | tee -a "$out/sweep.txt" | head -6
      done
    done ;;
  memory)
    normlab="python3 -m normlab.cli"
    $normlab memory --steps 20 --json "$out/memory_h200.json"
    $normlab train LICENSE --json "$out/train_h200.json" ;;
  sgemm)
    python3 -m pytest -q tests/kernels/test_sgemm_gpu.py 2>&1 | tail -5
    python3 -m hardware.sgemm_plans | tee "$out/sgemm_plans.txt" | tail -30
    for size in 4096 8192 2048 4000x4100x3000; do record "ladder_sgemm_${size}_h200" ladder sgemm --size $size; done ;;
  nn)
    python3 -m pytest -q -n 4 tests/nn/test_on_gpu.py tests/studies/memory/test_gpu.py 2>&1 | tail -15
    python3 -m hardware.modules "$out/modules.json"
    python3 -m hardware.llama "$out/llama.json" ;;
  counters) python3 tests/hardware/counters.py "$out/counters_h200.json" | tail -40 ;;
  sanitizers) python3 tests/hardware/sanitizers.py "$out/sanitizers_h200.json" | tail -40 ;;
  family)
    python3 tests/hardware/norm_family.py
    record family_h200 family --norm batch,instance,group ;;
  family-layer) record family_layer_h200 family --norm layer ;;  # its checks take minutes of the host
  clean) python3 -m hardware.clean "$out/clean_h200.json" ;;
  l2) python3 -m hardware.l2 "$out/l2_h200.json" ;;
  profile) python3 -m hardware.profile "$out/profile_h200.json" ;;
  large) python3 -m pytest -q tests/kernels/test_large.py 2>&1 | tail -20 ;;
  *) echo "unknown part $1" >&2; exit 2 ;;
esac

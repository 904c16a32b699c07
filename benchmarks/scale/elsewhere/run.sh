#!/usr/bin/env bash
# Trains questions of the study for some seconds, on a machine with a GPU that many workers share, and leaves their lines in a folder.
#
#     python -m benchmarks.scale.elsewhere.pack study.tar.gz              # where the data are
#     bash benchmarks/scale/elsewhere/run.sh study.tar.gz 560 out q2-ngpt=13 q3=4
#
# A question has its number of workers after the sign. Questions are trained at once, each in a copy of the repository, as a folder of
# sweeps has one sweep at a time. Lines that are in the repository count, and their questions go on, with the largest models first, which
# take longest elsewhere. The shapes of the first question are compiled meanwhile. The last lines are in the folder all the time, and at
# the end the scores, for which some 30 seconds are needed. What Python lacks has to be on PYTHONPATH, and NVIDIA's MPS, if it is to be
# used, on PATH. docs/results/gpu-small.md has what is known of the speed.
set -um # every job is a group of processes
packed=$(realpath "$1") seconds=$2 root=$PWD
mkdir -p "$3" && out=$(realpath "$3")
shift 3
SECONDS=0
work=$(mktemp -d)
tar -C "$work" -xzf "$packed"
export XDG_CACHE_HOME=$work/cache STUDY_LIBRARY=$work/library OMP_NUM_THREADS=1 PYTHONUNBUFFERED=1
export TORCHINDUCTOR_CUDAGRAPHS=1 TORCHINDUCTOR_COMPILE_THREADS=1
packages=${PYTHONPATH:-}
mps=$(command -v nvidia-cuda-mps-control)
if [ -n "$mps" ]; then
  export CUDA_MPS_PIPE_DIRECTORY=$work/mps CUDA_MPS_LOG_DIRECTORY=$work/mps
  mkdir -p "$work/mps" && "$mps" -d
fi
enter() { cd "$1" && export PYTHONPATH=$1:$root/benchmarks/scale/elsewhere/site:$packages; }
questions=() pids=()
for part in "$@"; do
  question=${part%=*}
  questions+=("$question")
  mkdir -p "$work/$question"
  cp -a "$root" "$work/$question/repository"
  ln -s "$work/shared" "$work/$question/shared"
  (enter "$work/$question/repository" &&
    exec python3 -m zoo sweep "configs/sweeps/scale/$question.yaml" --workers "${part#*=}" --largest-first) \
    > "$out/$question.log" 2>&1 &
  pids+=($!)
done
first=$work/${questions[0]}/repository
(enter "$first" && exec python3 -m benchmarks.scale.elsewhere.warm "${questions[0]}") > "$out/warm.log" 2>&1 &
warming=$!
score() {
  (enter "$work/$1/repository" && exec python3 -m benchmarks.scale score "$1") >> "$out/score.log" 2>&1
}
while sleep 30; do
  for question in "${questions[@]}"; do score "$question"; done
done &
scoring=$!
copy() {
  for question in "${questions[@]}"; do
    cp "$work/$question/repository/docs/results/scale/$question"{,-scores}.csv "$out/" 2>/dev/null
  done
  (cd "$out" && wc -l ./*.csv 2>/dev/null | tr '\n' ' ')
}
while [ $SECONDS -lt "$seconds" ] && kill -0 "${pids[@]}" 2>/dev/null; do
  sleep 10
  echo "$SECONDS s: $(copy)"
done
# With their workers, which have their groups. Every run that has ended has its line; the others are lost.
for group in "$warming" "$scoring" "${pids[@]}"; do kill -KILL -- "-$group" 2>/dev/null; done
scorers=()
for question in "${questions[@]}"; do
  score "$question" &
  scorers+=($!)
done
wait "${scorers[@]}"
echo "$SECONDS s: $(copy)"
[ -n "$mps" ] && echo quit | "$mps"
exit 0

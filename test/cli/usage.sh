#!/usr/bin/env bash
# A wrong command line: exit status 2, and what to do.
. "$REPO/test/cli/common.bash"
tiny
zerotrain 2>&1 >/dev/null | head -n 1
try zerotrain --nonsense tiny.yaml
try zerotrain --num-gpus=2 tiny.yaml
try zerotrain --num_gpus
try zerotrain plan --json=yes tiny.yaml
try zerotrain -x tiny.yaml
# No abbreviations: --deepspeed would be --deepspeed_config, and take the next word.
try zerotrain --num_gpu 2 tiny.yaml
try zerotrain --num_gpus=2 --deepspeed --deepspeed_config nosuch.json tiny.yaml
try zerotrain tiny.yaml --deepspeed
try zerotrain hosts --hostf x
try zerotrain report --form=csv x
try zerotrain export --dtyp bf16 a b
try zerotrain inspect --ver a
try zerotrain launch --num_gpu 2 true
# What is a key of the recipe here, by its name or by another's.
for o in --lr=1e-3 --steps=5 --max-steps=5 --per_device_train_batch_size=8 --bf16 --zero_stage=3 --output_dir=x \
    --gradient_accumulation_steps=2 --config=x --cpu --num_processes=2 --rdzv_backend=c10d --quiet; do
    zerotrain $o tiny.yaml 2>&1
done
zerotrain hosts --lr=1 2>&1
# A misspelt name has its suggestion in every command, and what takes no value says so.
for c in plan report export inspect hosts doctor launch; do
    zerotrain $c --hlep 2>&1 | head -n 1
    zerotrain $c --help=now 2>&1 | head -n 1
done
try zerotrain hosts -H x
try zerotrain export -xq a b
# A command that is none.
try zerotrain pln
try zerotrain trian tiny.yaml
try zerotrain help pln
try zerotrain help agent
# What DeepSpeed's launcher and torchrun take.
for o in --master_port=29500 "--master_addr host" "-H hostfile" --no_ssh --module --bind_cores_to_rank \
    --nproc_per_node=2; do
    # shellcheck disable=SC2086
    try zerotrain $o tiny.yaml
done
try zerotrain --include=node-a:0,1 tiny.yaml
try zerotrain --device=cpu --exclude=localhost@node-b tiny.yaml
try zerotrain plan --include=node-a:0,1 tiny.yaml
try zerotrain plan --include=localhost tiny.yaml
zerotrain plan --include=localhost:0,2,5 tiny.yaml | head -n 1
try zerotrain --num_gpus=2 train.py --deepspeed --deepspeed_config ds.json --batch-size 8
try zerotrain --num_gpus 2
try zerotrain --num_gpus=0 tiny.yaml
try zerotrain --num_gpus=-1 tiny.yaml
try zerotrain --num_gpus=two tiny.yaml
try zerotrain --num_gpus=99999999999999999999 tiny.yaml
try zerotrain --device=tpu tiny.yaml
try zerotrain tiny.yaml tiny.yaml
try zerotrain paln tiny.yaml
try zerotrain plan
try zerotrain --log_dir= tiny.yaml
try zerotrain --resume tiny.yaml
try zerotrain plan --largest --fit=1GB
try zerotrain doctor --set train.steps=1
try zerotrain plan --set optimizer.params.learning_rate=1 tiny.yaml
try zerotrain plan --set checkpoint.keep=2 --set checkpoint.keep_every=5 tiny.yaml
try zerotrain plan --set checkpoint.dir=ck --set checkpoint.keep_every=5 tiny.yaml
try zerotrain plan --log_dir=x tiny.yaml
try zerotrain plan --rank=x tiny.yaml
try zerotrain --device=cpu --num_gpus=65 tiny.yaml
